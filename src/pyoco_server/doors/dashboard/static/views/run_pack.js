// A priced run: how its work and its money stand, and how its result is read.

import { h } from "../lib/dom.js";
import { count, span } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { usd } from "../lib/money.js";
import { moneyBadge } from "../lib/pack_parts.js";
import { card, commandBox, copy, facts, iconButton, refill } from "../lib/parts.js";
import { isObject, textOf } from "../lib/run_facts.js";

/** @typedef {import("../lib/wire.js").Run} Run */

export class PackSection {
  constructor() {
    this.body = h("div", { class: "pack-facts" });
    this.element = card(t("pack.section"), { class: "run-pack" }, this.body);
  }

  /** @param {Run} run */
  show(run) {
    const cost = isObject(run.cost) ? run.cost : {};
    const money = textOf(run.money_state);
    const made = [run.priced_status, run.finalizing, money, cost, run.pack_type, run.tokens_consumed, run.timebox_sec,
      run.reason_code, run.trace_id];
    refill(this.body, made, () => [
      facts([
        [t("pack.status"), statusWords(run)],
        [t("pack.money"), money === "" ? null : moneyBadge(money)],
        [t("pack.used"), usd(cost.used_usd_micros)],
        [t("pack.reserved"), usd(cost.reserved_usd_micros)],
        [t("pack.fee"), usd(cost.minimum_fee_usd_micros)],
        [t("pack.type"), textOf(run.pack_type)],
        [t("pack.timebox"), typeof run.timebox_sec === "number" ? span(run.timebox_sec) : null],
        [t("pack.tokens"), typeof run.tokens_consumed === "number" ? count(run.tokens_consumed) : null],
        [t("pack.reason"), run.reason_code ? h("code", { class: "pack-code" }, textOf(run.reason_code)) : null],
        [t("pack.trace"), run.trace_id ? [h("code", { class: "pack-code" }, textOf(run.trace_id)),
          iconButton("copy", t("copy"), () => copy(textOf(run.trace_id)))] : null],
      ]),
      money === "DISPUTED" ? h("p", { class: "mark" }, t("pack.money.DISPUTED.note")) : null,
    ]);
  }
}

/** @param {Run} run */
function statusWords(run) {
  const words = wordFor("pack.status", textOf(run.priced_status));
  return run.finalizing === true ? `${words} · ${t("pack.status.finalizing")}` : words;
}

/** The same in a terminal: what is in the result is the tenant's alone, so a key is needed there, too. */
export class PackResultSection {
  /** @param {import("./run_kinds.js").RunPage} page */
  constructor(page) {
    this.id = page.id;
    this.body = h("div", { class: "run-commands" });
    this.element = card(t("pack.result"), {}, this.body);
  }

  /** @param {Run} run */
  show(run) {
    const failed = run.status === "FAILED";
    refill(this.body, failed, () => {
      const path = `v1/runs/${encodeURIComponent(this.id)}${failed ? "" : "/envelope"}`;
      const address = new URL(path, location.href.replace(/#.*$/s, "")).href;
      return [
        h("p", { class: "dim" }, t(failed ? "pack.result.none" : "pack.result.note")),
        commandBox(`curl -H "Authorization: Bearer $PYOCO_API_KEY" ${address}`),
        commandBox(`pyoco-client price ${failed ? "get" : "result"} ${this.id}`),
      ];
    });
  }
}

export class PackCommandsSection {
  /** @param {import("./run_kinds.js").RunPage} page */
  constructor(page) {
    const verbs = ["get", "watch", "logs", "why"];
    this.element = card(t("run.commands"), {},
      h("div", { class: "run-commands" }, verbs.map((verb) => commandBox(`pyoco-client ${verb} ${page.id}`))));
  }

  show() {}
}
