// The failed tries of a run with a retry policy, and when the next one comes.

import { h } from "../lib/dom.js";
import { dateTime } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { card, lasting, longText, refill, since } from "../lib/parts.js";
import { isObject, textOf } from "../lib/run_facts.js";

/** @typedef {import("../lib/wire.js").Run} Run */

export class TriesSection {
  constructor() {
    this.body = h("div");
    this.element = card(t("run.tries"), {}, this.body);
    this.element.hidden = true;
  }

  /** A run whose first try has not failed needs no list. @param {Run} run */
  show(run) {
    const failed = Array.isArray(run.tries) ? run.tries.filter(isObject) : [];
    this.element.hidden = failed.length === 0;
    if (this.element.hidden) return;
    const isWaiting = isObject(run.waiting) && run.waiting.reason === "retry";
    const next = isWaiting && typeof run.not_before === "number" ? run.not_before : null;
    refill(this.body, [failed, next, run.try, run.max_tries], () => [
      h("p", { class: "dim small" }, next === null
        ? t("run.tries.current", { n: run.try ?? "–", max: run.max_tries ?? "–" })
        : t("run.tries.next", { n: run.try ?? "–", max: run.max_tries ?? "–", at: dateTime(next) })),
      h("ol", { class: "run-attempts" }, ...failed.map(line)),
    ]);
  }
}

/** @param {Record<string, unknown>} failed */
function line(failed) {
  const from = typeof failed.started_at === "number" ? failed.started_at : null;
  const to = typeof failed.ended_at === "number" ? failed.ended_at : null;
  return h("li", null,
    h("strong", null, t("run.tries.one", { n: textOf(failed.try) || "–" })),
    h("code", null, textOf(failed.kind)),
    from === null || to === null ? null
      : h("span", { class: "run-attempt-when" }, since(from), " · ", lasting(from, to)),
    textOf(failed.error) === "" ? null : longText(textOf(failed.error)));
}
