// What went wrong, in full: the run's error, and of the tasks that failed what they raised.

import { h } from "../lib/dom.js";
import { t, wordFor } from "../lib/i18n.js";
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
    const error = text(run.error);
    const reason = text(run.reason);
    this.element.hidden = error === "" && told.length === 0;
    if (this.element.hidden) return;
    const more = failed.length - TASKS_MAX;
    refill(this.body, [error, reason, told, more], () => [
      error === "" ? null : longText(error),
      reason === "" ? null : h("p", { class: "dim small" }, `${t("run.reason")}: ${wordFor("letters.reason", reason)}`),
      ...told.map((task) => this.task(task)),
      more > 0 ? h("p", { class: "mark" }, t("run.error.more", { n: more })) : null,
    ]);
  }

  /** @param {{ name: string, error: string, traceback: string }} task */
  task(task) {
    const words = t("run.error.task", { task: task.name });
    const select = button(words, () => this.page.selected.set(task.name), { kind: "quiet" });
    select.classList.add("run-error-name");
    return h("div", { class: "run-error-task" }, h("h3", null, select),
      task.error === "" ? null : h("p", { class: "run-error-words" }, task.error),
      task.traceback === "" ? null : h("details", { open: true },
        h("summary", null, t("run.traceback")), longText(task.traceback)));
  }
}

/** @param {unknown} value */
function text(value) {
  return typeof value === "string" ? value : "";
}
