// Redrive or delete all letters that fit a filter, in steps, with numbers and a way to stop.

import { Refused, send, Unreachable } from "../lib/api.js";
import { confirm, mayAct } from "../lib/act.js";
import { h, put } from "../lib/dom.js";
import { list, whole } from "../lib/fleet.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { given, letterPath } from "../lib/letters.js";
import { button, commandBox, refill, shellWord } from "../lib/parts.js";

/** @typedef {import("../lib/letters.js").LetterFilter} LetterFilter */
/** @typedef {{ done: number, failed: number, problems: { id: string, err_id: string, detail: string }[] }} Tally */

/** Each step is well within the time that one request may take, and shows that something moves. */
const REDRIVE_STEP = 100;
const DELETE_STEP = 1000;
/** The same letters that come again and again end it: as many as the gateway would take in one request, a few times. */
const STEPS_MAX = 1000;

export class LettersBulk {
  /** @param {() => void} changed */
  constructor(changed) {
    this.changed = changed;
    this.buttons = h("div", { class: "row-actions" });
    this.status = h("div", { class: "bulk-status", role: "status" });
    this.element = h("div", { class: "stack" }, this.buttons, this.status);
    this.running = false;
    this.stopping = false;
    this.told = "";
  }

  /** Between two steps; what has been done stays done. */
  stop() {
    this.stopping = true;
  }

  /**
   * @param {LetterFilter} filter
   * @param {number | null} n how many it means; null: not known
   */
  show(filter, n) {
    if (this.running || !mayAct) return;
    // What was told is of the letters it was done to.
    if (JSON.stringify(filter) !== this.told) put(this.status);
    this.told = JSON.stringify(filter);
    refill(this.buttons, [filter, n], () => (n === 0 ? [] : [
      button(n === null ? t("letters.redrive_matching") : t("letters.redrive_n", { n: count(n) }),
        () => this.redrive(filter, n), { icon: "repeat" }),
      button(n === null ? t("letters.delete_matching") : t("letters.delete_n", { n: count(n) }),
        () => this.remove(filter, n), { icon: "trash", kind: "danger" }),
    ]));
  }

  /**
   * @param {LetterFilter} filter
   * @param {number | null} n
   */
  async redrive(filter, n) {
    const sure = await confirm({
      title: n === null ? t("letters.redrive_matching") : t("letters.redrive_n", { n: count(n) }), yes: t("letters.redrive"),
      body: [h("p", null, t("letters.redrive_many_note")), commandBox(commandFor("redrive", filter))],
    });
    if (sure === null) return;
    /** @type {string | null} */
    let cursor = null;
    await this.run("redrive", n, async (tally) => {
      const body = { ...selection(filter), limit: REDRIVE_STEP, ...(cursor === null ? {} : { cursor }) };
      const told = await send("POST", "dlq/redrive", body);
      tally.done += whole(told?.redriven);
      tally.failed += whole(told?.failed);
      tally.problems.push(...list(told?.problems).slice(0, 20 - tally.problems.length));
      cursor = told?.next_cursor ?? null;
      return told?.more === true && cursor !== null;
    });
  }

  /**
   * @param {LetterFilter} filter
   * @param {number | null} n
   */
  async remove(filter, n) {
    const sure = await confirm({
      title: n === null ? t("letters.delete_matching") : t("letters.delete_n", { n: count(n) }), yes: t("letters.delete"),
      danger: true, body: [h("p", null, t("letters.delete_note")), commandBox(commandFor("delete", filter))],
    });
    if (sure === null) return;
    await this.run("delete", n, async (tally) => {
      const isAll = Object.keys(given(filter)).length === 0;
      const told = await send("DELETE", letterPath(filter, { limit: DELETE_STEP, all: isAll ? true : null }));
      tally.done += whole(told?.deleted);
      return told?.more === true && whole(told?.deleted) > 0;
    });
  }

  /**
   * @param {"redrive" | "delete"} what
   * @param {number | null} n
   * @param {(tally: Tally) => Promise<boolean>} step true: there is more
   */
  async run(what, n, step) {
    if (this.running) return;
    this.running = true;
    this.stopping = false;
    /** @type {Tally} */
    const tally = { done: 0, failed: 0, problems: [] };
    put(this.buttons, button(t("letters.stop"), () => this.stop(), { icon: "stop" }));
    /** @type {string | null} */
    let trouble = null;
    try {
      for (let steps = 0, more = true; more && !this.stopping && steps < STEPS_MAX; steps += 1) {
        this.tell(what, tally, n, null, true);
        more = await step(tally);
      }
    } catch (error) {
      if (error instanceof Refused) trouble = error.words;
      else if (error instanceof Unreachable) trouble = t("act.unreachable");
      else throw error;
    } finally {
      this.running = false;
      /** @type {any} */ (this.buttons).pyocoMade = null;
      put(this.buttons);
    }
    this.tell(what, tally, n, trouble, false);
    this.changed();
  }

  /**
   * @param {"redrive" | "delete"} what
   * @param {Tally} tally
   * @param {number | null} n
   * @param {string | null} trouble
   * @param {boolean} goesOn
   */
  tell(what, tally, n, trouble, goesOn) {
    const facts = { done: count(tally.done), n: n === null ? "?" : count(n) };
    put(this.status,
      h("p", null, t(goesOn ? `letters.${what}_goes_on` : `letters.${what}_done`, facts),
        tally.failed === 0 ? null : ` ${t("letters.failed", { n: count(tally.failed) })}`,
        goesOn || !this.stopping ? null : ` ${t("letters.stopped")}`),
      trouble === null ? null : h("p", { class: "bad-word" }, trouble),
      tally.problems.length === 0 ? null : h("ul", { class: "troubles" }, tally.problems.map((each) =>
        h("li", null, h("span", { class: "mono" }, `${each.id} ${each.err_id}`), h("span", null, String(each.detail).slice(0, 500))))));
  }
}

/** @param {LetterFilter} filter */
function selection(filter) {
  const set = given(filter);
  return Object.keys(set).length === 0 ? { all: true } : set;
}

/**
 * @param {"redrive" | "delete"} what
 * @param {LetterFilter} filter
 */
function commandFor(what, filter) {
  const words = Object.entries(given(filter)).map(([name, value]) => `--${name.replace("_", "-")} ${shellWord(value)}`);
  return `pyoco-client dlq ${what} ${words.length === 0 ? "--all" : `--all-matching ${words.join(" ")}`} --yes`;
}
