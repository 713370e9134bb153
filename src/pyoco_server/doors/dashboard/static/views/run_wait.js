// Why a run has not begun, in the gateway's words.

import { h, write } from "../lib/dom.js";
import { count, shortId, span } from "../lib/format.js";
import { sentence, t } from "../lib/i18n.js";
import { card, facts, refill } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { isObject, isPack, isProgram, textOf, waits } from "../lib/run_facts.js";

/** @typedef {import("../lib/wire.js").Run} Run */

export class WaitSection {
  constructor() {
    this.words = h("p", { class: "run-wait-words" });
    // The words count places and seconds. Read aloud is why it waits, and again when that is another.
    this.spoken = h("p", { class: "unseen", role: "status" });
    /** @type {unknown} */
    this.reason = null;
    this.facts = h("div");
    this.element = card(t("run.waiting"), { class: "run-waiting" }, this.words, this.spoken, this.facts);
    this.element.hidden = true;
  }

  /** @param {Run} run */
  show(run) {
    this.element.hidden = !waits(run);
    if (this.element.hidden) return;
    const told = isObject(run.waiting) ? run.waiting : undefined;
    write(this.words, told === undefined ? t("run.waiting.unknown") : textOf(sentence(told)));
    if (told !== undefined && told.reason !== this.reason) {
      this.reason = told.reason;
      write(this.spoken, this.words.textContent ?? "");
    }
    const oldest = told?.oldest_ahead;
    // An age grows all the time: in steps, so that the rest stays still.
    const age = typeof oldest?.age_seconds === "number" ? Math.round(oldest.age_seconds / 5) * 5 : null;
    const ahead = textOf(oldest?.run_id);
    const made = [told && { ...told, oldest_ahead: null }, ahead, age];
    refill(this.facts, made, () => (told === undefined || told.reason === "disputed" ? [] : [facts([
      [t("run.waiting.position"), place(told)],
      [workersWord(run), number(told.workers_alive)],
      [t("run.waiting.slots"), typeof told.slots === "number" && !isPack(run)
        ? t("run.waiting.of", { busy: count(told.slots_busy ?? 0), slots: count(told.slots) }) : null],
      [t("run.waiting.oldest"), age === null ? null : [
        ahead === "" ? null : h("a", { class: "mono", href: href("runs", [ahead]) }, shortId(ahead)),
        ahead === "" ? null : " · ", span(age),
      ]],
    ])]));
  }
}

/** @param {Run} run */
function workersWord(run) {
  if (isPack(run)) return t("run.waiting.all_workers");
  return t(isProgram(run) ? "run.waiting.program_workers" : "run.waiting.workers");
}

/** @param {import("../lib/wire.js").Waiting} told */
function place(told) {
  if (typeof told.position !== "number") return null;
  return told.position_capped ? t("run.waiting.capped", { n: count(told.position) }) : count(told.position);
}

/** @param {number | undefined} value */
function number(value) {
  return typeof value === "number" ? count(value) : null;
}
