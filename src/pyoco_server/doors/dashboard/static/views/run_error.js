// What went wrong, in full: the run's error, and of the tasks that failed what they raised.

import { h } from "../lib/dom.js";
import { t, wordFor } from "../lib/i18n.js";
import { jumpToLog } from "../lib/log_filter.js";
import { button, card, longText, refill } from "../lib/parts.js";
import { recordOf, stateOf, taskNames } from "../lib/run_facts.js";

/** @typedef {import("../lib/wire.js").Run} Run */

const TASKS_MAX = 5;

export class ErrorSection {
  /** @param {import("./run_kinds.js").RunPage} page */
  constructor(page) {
    this.page = page;
    this.body = h("div", { class: "run-error" });
    this.element = card(t("run.error"), { class: "run-error-card" }, this.body);
    this.element.hidden = true;
  }

  /** @param {Run} run */
  show(run) {
    const failed = taskNames(run).filter((name) => stateOf(run, name) === "FAILED");
    const told = failed.slice(0, TASKS_MAX).map((name) => {
      const record = recordOf(run, name);
      return { name, error: text(record?.error), traceback: text(record?.traceback) };
    }).filter((task) => task.error !== "" || task.traceback !== "");
    const attempt = typeof run.attempt === "number" && run.attempt > 1 ? run.attempt : null;
    const error = text(run.error);
    const reason = text(run.reason);
    this.element.hidden = error === "" && told.length === 0;
    if (this.element.hidden) return;
    const more = failed.length - TASKS_MAX;
    refill(this.body, [error, reason, told, more, attempt], () => [
      error === "" ? null : longText(error),
      reason === "" ? null : h("p", { class: "dim small" }, `${t("run.reason")}: ${wordFor("letters.reason", reason)}`),
      told.length > 0 ? null : lastLines(this.page, { attempt }),
      ...told.map((task) => this.task(task, attempt)),
      more > 0 ? h("p", { class: "mark" }, t("run.error.more", { n: more })) : null,
    ]);
  }

  /**
   * @param {{ name: string, error: string, traceback: string }} task
   * @param {number | null} attempt
   */
  task(task, attempt) {
    const words = t("run.error.task", { task: task.name });
    const select = button(words, () => this.page.selected.set(task.name), { kind: "quiet" });
    select.classList.add("run-error-name");
    return h("div", { class: "run-error-task" }, h("div", { class: "row-actions" }, h("h3", null, select), lastLines(this.page, { task: task.name, attempt })),
      task.error === "" ? null : h("p", { class: "run-error-words" }, task.error),
      task.traceback === "" ? null : h("details", { open: true },
        h("summary", null, t("run.traceback")), longText(task.traceback)));
  }
}

/**
 * A button that leads to the last log lines before an error.
 * @param {import("./run_kinds.js").RunPage} page
 * @param {Partial<import("../lib/log_filter.js").LogFilter>} wanted
 */
export function lastLines(page, wanted) {
  return h("div", null, button(t("logs.of_error"), () => jumpToLog(page, wanted)));
}

/** @param {unknown} value */
function text(value) {
  return typeof value === "string" ? value : "";
}
