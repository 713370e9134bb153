// Each try of a run: who had it, when, and why it was not the last.

import { h } from "../lib/dom.js";
import { chartOf } from "../lib/gantt.js";
import { t, wordFor } from "../lib/i18n.js";
import { badge, card, lasting, refill, since } from "../lib/parts.js";
import { href } from "../lib/router.js";

/** @typedef {import("../lib/wire.js").Run} Run */

export class AttemptsSection {
  constructor() {
    this.body = h("div");
    this.element = card(t("run.attempts"), {}, this.body);
    this.element.hidden = true;
  }

  /** Of a run with one attempt the head says everything. @param {Run} run */
  show(run) {
    const { past, present } = chartOf({ ...run, tasks: {}, task_records: {}, graph: {} });
    this.element.hidden = past.length === 0;
    if (this.element.hidden) return;
    const made = [past, present, run.attempt, run.worker_id, run.status];
    refill(this.body, made, () => [
      h("p", { class: "dim small" }, t("run.attempts.note")),
      h("ol", { class: "run-attempts" },
        ...past.map((each) => line(each.attempt, each.worker, each,
          h("span", { class: "dim" }, wordFor("run.why", each.why)))),
        present && line(run.attempt ?? null, run.worker_id ?? null, present, badge(run.status))),
    ]);
  }
}

/**
 * @param {number | null} attempt
 * @param {string | null} worker
 * @param {{ from: number, to: number | null }} when
 * @param {HTMLElement} how
 */
function line(attempt, worker, when, how) {
  return h("li", null,
    h("strong", null, t("run.timeline.attempt", { n: attempt ?? "–" })),
    worker === null ? null : workerLink(worker),
    h("span", { class: "run-attempt-when" }, since(when.from), " · ", lasting(when.from, when.to)), how);
}

/** @param {string} id */
export function workerLink(id) {
  return h("a", { class: "one-line", href: href("workers", [], { worker: id }), title: id }, id);
}
