// Why a priced run failed, and what that cost: in words first, then in the words of whoever ended it.

import { h } from "../lib/dom.js";
import { plain } from "../lib/envelope.js";
import { t, wordFor } from "../lib/i18n.js";
import { usd } from "../lib/money.js";
import { card, refill } from "../lib/parts.js";
import { isObject, textOf } from "../lib/run_facts.js";
import { prose } from "./envelope_parts.js";
import { lastLines } from "./run_error.js";

/** @typedef {import("../lib/wire.js").Run} Run */

export class PackFailureSection {
  /** @param {import("./run_kinds.js").RunPage} page */
  constructor(page) {
    this.page = page;
    this.body = h("div", { class: "run-error" });
    this.element = card(t("failure.title"), { class: "run-error-card" }, this.body);
    this.element.hidden = true;
  }

  /** @param {Run} run */
  show(run) {
    const code = textOf(run.reason_code);
    const error = textOf(run.error);
    this.element.hidden = code === "" && error === "";
    if (this.element.hidden) return;
    const used = isObject(run.cost) ? run.cost.used_usd_micros : null;
    refill(this.body, [code, error, run.money_state, used], () => {
      const words = wordFor("failure.why", code);
      const detail = error.startsWith(`${code}: `) ? error.slice(code.length + 2) : error === code ? "" : error;
      return [
        h("p", { class: "failure-words" }, words === code ? null : `${words} `, code === "" ? null : h("code", { class: "pack-code" }, plain(code))),
        detail === "" ? null : prose(detail, { class: "failure-detail" }),
        h("p", { class: "dim small" }, costOf(run, used)),
        lastLines(this.page, {}),
      ];
    });
  }
}

/**
 * @param {Run} run
 * @param {unknown} used
 */
function costOf(run, used) {
  if (run.money_state === "REFUNDED") return t("failure.cost.none");
  return run.money_state === "SETTLED" ? t("failure.cost.fee", { usd: usd(used) }) : t("failure.cost.open");
}
