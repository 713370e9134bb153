// Redrive or delete all letters that fit a filter, in steps, with numbers and a way to stop.

import { Refused, send, Unreachable } from "../lib/api.js";
import { confirm, mayAct } from "../lib/act.js";
import { h, put, write } from "../lib/dom.js";
import { list, whole } from "../lib/fleet.js";
import { count } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { FILTERS, given, letterPath } from "../lib/letters.js";
import { button, commandBox, facts, shellWord } from "../lib/parts.js";
import { programOf } from "../lib/programs.js";
import { href } from "../lib/router.js";
import { currentKey } from "../lib/session.js";
import { toast } from "../lib/toast.js";

/** @typedef {import("../lib/letters.js").LetterFilter} LetterFilter */
/**
 * Letters that fit a filter, up to the newest that was shown: what comes in while somebody thinks is not meant.
 * @typedef {{ filter: LetterFilter, n: number | null, newest: string }} Meant
 */
/** @typedef {{ done: number, failed: number, problems: { id: string, err_id: string, detail: string }[] }} Tally */

/** Each step is well within the time that one request may take, and shows that something moves. */
const REDRIVE_STEP = 100;
const DELETE_STEP = 1000;
/** The same letters that come again and again end it: as many as the gateway would take in one request, a few times. */
const STEPS_MAX = 1000;

export class LettersBulk {
  /**
   * @param {() => void} changed
   * @param {() => void} settle what is typed counts from now on: `show` is called before this returns
   */
  constructor(changed, settle) {
    this.changed = changed;
    this.settle = settle;
    /** @type {Meant | null} null: there is nothing to do anything with, or it is not known yet what is meant */
    this.meant = null;
    this.isKnown = false;
    this.redriveAll = button("", () => this.redrive(), { icon: "repeat" });
    this.deleteAll = button("", () => this.remove(), { icon: "trash", kind: "danger" });
    this.element = h("div", { class: "row-actions", hidden: true }, this.redriveAll, this.deleteAll);
    this.status = h("div", { class: "bulk-status", role: "status", tabindex: "-1" });
    this.stopButton = button(t("letters.stop"), () => this.stop(), { icon: "stop" });
    this.stopButton.hidden = true;
    /** What came of it. It stays when the list is empty, and so has a place of its own. */
    this.outcome = h("div", { class: "bulk-outcome" }, this.status, this.stopButton);
    this.running = false;
    this.stopping = false;
    this.closed = false;
    /** @type {string | null} the filter that what is told belongs to; null: whichever comes next */
    this.told = null;
  }

  /** Between two steps; what has been done stays done. */
  stop() {
    this.stopping = true;
  }

  close() {
    this.closed = true;
    this.stop();
  }

  /**
   * @param {LetterFilter} filter
   * @param {number | null} n how many it means; null: not known
   * @param {string | null} newest the newest of them that is shown; null: none is
   * @param {boolean} isKnown false: the letters of this filter have not come yet, or somebody types another one
   */
  show(filter, n, newest, isKnown) {
    if (!mayAct) return;
    if (!this.running) {
      // What was told is of the letters it was done to.
      if (this.told !== null && JSON.stringify(filter) !== this.told) put(this.status);
      this.told = JSON.stringify(filter);
    }
    this.isKnown = isKnown;
    this.meant = !isKnown || newest === null || n === 0 ? null : { filter, n, newest };
    this.draw();
  }

  /** The buttons stay the same ones: the focus is on one of them while the number changes. */
  draw() {
    // Until it is known what is meant they stay where they are, without a number, and do nothing.
    const isGone = this.meant === null && (this.isKnown || this.element.hidden);
    if (!isGone) {
      write(/** @type {Element} */ (this.redriveAll.lastElementChild), titleFor("redrive", this.meant?.n ?? null));
      write(/** @type {Element} */ (this.deleteAll.lastElementChild), titleFor("delete", this.meant?.n ?? null));
    }
    for (const each of [this.redriveAll, this.deleteAll]) {
      for (const name of ["aria-busy", "aria-disabled"]) {
        if (this.running || this.meant === null) each.setAttribute(name, "true");
        else each.removeAttribute(name);
      }
    }
    const isLeft = document.activeElement !== null &&
      (isGone && this.element.contains(document.activeElement) || !this.running && this.stopButton === document.activeElement);
    this.element.hidden = isGone;
    this.stopButton.hidden = !this.running;
    if (isLeft) this.status.focus({ preventScroll: true });
  }

  async redrive() {
    this.settle();
    const { meant } = this;
    if (meant === null || this.running) return;
    const sure = await confirm({
      title: titleFor("redrive", meant.n), yes: t("letters.redrive"),
      body: [meaning(meant.filter), h("p", null, t("letters.redrive_many_note")), h("p", null, t("letters.only_these")),
        commandFor("redrive", meant)],
    });
    if (sure === null) return;
    /** @type {string | null} */
    let cursor = null;
    await this.run("redrive", meant.n, async (tally) => {
      const body = { ...selection(meant.filter), up_to: meant.newest, limit: REDRIVE_STEP, ...(cursor === null ? {} : { cursor }) };
      const told = await send("POST", "dlq/redrive", body);
      tally.done += whole(told?.redriven);
      tally.failed += whole(told?.failed);
      tally.problems.push(...list(told?.problems).slice(0, 20 - tally.problems.length));
      cursor = told?.next_cursor ?? null;
      return told?.more === true && cursor !== null;
    });
  }

  async remove() {
    this.settle();
    const { meant } = this;
    if (meant === null || this.running) return;
    const sure = await confirm({
      title: titleFor("delete", meant.n), yes: t("letters.delete"), danger: true,
      body: [meaning(meant.filter), h("p", null, t("letters.delete_note")), h("p", null, t("letters.only_these")),
        commandFor("delete", meant)],
    });
    if (sure === null) return;
    await this.run("delete", meant.n, async (tally) => {
      const isAll = Object.keys(given(meant.filter)).length === 0;
      const told = await send("DELETE", letterPath(meant.filter, { up_to: meant.newest, limit: DELETE_STEP, all: isAll ? true : null }));
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
    if (this.running || this.closed) return;
    const key = currentKey();
    this.running = true;
    this.stopping = false;
    /** @type {Tally} */
    const tally = { done: 0, failed: 0, problems: [] };
    this.draw();
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
      this.told = null;
      this.draw();
    }
    this.tell(what, tally, n, trouble, false);
    // Whoever went elsewhere meanwhile is told there, unless somebody else is there now.
    const words = [this.status.firstElementChild?.textContent ?? "", trouble ?? ""].join(" ").trim();
    if (this.closed && key === currentKey()) toast(words, trouble === null ? "plain" : "danger", href("letters"));
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
 * @param {number | null} n
 */
function titleFor(what, n) {
  return n === null ? t(`letters.${what}_matching`) : t(`letters.${what}_n`, { n: count(n) });
}

/**
 * @param {"redrive" | "delete"} what
 * @param {Meant} meant
 */
function commandFor(what, { filter, newest }) {
  const words = optionsOf(filter);
  if (words === null) return null;
  const which = words.length === 0 ? "--all" : `--all-matching ${words.join(" ")}`;
  return commandBox(`pyoco-client dlq ${what} ${which} --up-to ${shellWord(newest)} --yes`);
}

/**
 * A filter as the options of a command; null: there is none, for an empty value is refused there as a variable that
 * somebody forgot to set.
 * @param {LetterFilter} filter
 * @returns {string[] | null}
 */
export function optionsOf(filter) {
  const set = Object.entries(given(filter));
  return set.some(([, value]) => value === "") ? null
    : set.map(([name, value]) => `--${name.replace("_", "-")} ${shellWord(value)}`);
}

/**
 * What a filter asks of one member of a letter, in words.
 * @param {string} name
 * @param {string} value
 */
export function wordOf(name, value) {
  return name === "reason" ? wordFor("letters.reason", value) : value === "" ? t("letters.no_flow") : value;
}

/**
 * What a reason means; nothing for one that nobody here knows.
 * @param {string} reason
 * @param {unknown} flow
 */
export function whyWords(reason, flow) {
  if (reason === "execution_error" && programOf(flow) !== null) return t("letters.why.program");
  const words = wordFor("letters.why", reason);
  return words === reason ? "" : words;
}

/**
 * Which letters are meant, for whoever is asked whether to go on.
 * @param {LetterFilter} filter
 */
function meaning(filter) {
  if (Object.keys(given(filter)).length === 0) return h("p", { class: "bad-word" }, t("letters.means_all"));
  return h("div", { class: "stack" }, h("p", null, t("letters.means")), facts(FILTERS.map((name) => {
    const value = filter[name];
    return [t(`letters.${name}`), value === null ? null : wordOf(name, value)];
  })));
}
