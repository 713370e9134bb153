// What stands beside a run: what it was given, and how to look at it from a terminal.

import { h } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { card, commandBox, longText, refill } from "../lib/parts.js";
import { isObject, isTerminal, jsonText } from "../lib/run_facts.js";

/** @typedef {import("../lib/wire.js").Run} Run */

export class ParamsSection {
  constructor() {
    this.body = h("div");
    this.element = card(t("run.params"), {}, this.body);
  }

  /** @param {Run} run */
  show(run) {
    const isEmpty = !isObject(run.params) || Object.keys(run.params).length === 0;
    refill(this.body, [run.params, run.params_truncated], () => [
      run.params_truncated ? h("p", { class: "mark" }, t("run.params.truncated")) : null,
      isEmpty ? (run.params_truncated ? null : h("p", { class: "dim" }, t("run.params.none"))) : longText(jsonText(run.params)),
    ]);
  }
}

export class CommandsSection {
  /** @param {import("./run_kinds.js").RunPage} page */
  constructor(page) {
    this.id = page.id;
    this.body = h("div", { class: "run-commands" });
    this.element = card(t("run.commands"), {}, this.body);
  }

  /** @param {Run} run */
  show(run) {
    const ended = isTerminal(run.status);
    const verbs = ended ? ["get", "logs", "why", "rerun"] : ["watch", "get", "logs", "why", "cancel", "rerun"];
    refill(this.body, verbs, () => verbs.map((verb) => commandBox(`pyoco-client ${verb} ${this.id}`)));
  }
}
