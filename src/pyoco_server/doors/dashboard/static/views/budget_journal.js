// Every movement of a tenant's money, the newest first. What is written never changes: a line is made once.

import { get } from "../lib/api.js";
import { h, put } from "../lib/dom.js";
import { list } from "../lib/fleet.js";
import { count, dateTime, shortId } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { change } from "../lib/money.js";
import { act } from "../lib/act.js";
import { actButton, card } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { instant, textOf } from "../lib/run_facts.js";

/** @typedef {import("../lib/wire.js").JournalLine} JournalLine */

const PAGE = 50;
const LINES_MAX = 2000;
const COLUMNS = /** @type {const} */ (["time", "kind", "available", "held", "charged", "run", "by", "memo"]);
const NUMBERS = new Set(["available", "held", "charged"]);

export class BudgetJournal {
  /** @param {string} path of the budget */
  constructor(path) {
    this.path = `${path}/journal`;
    /** @type {number[]} the ids that are shown, the newest first */
    this.ids = [];
    /** @type {number | null} where the next page begins */
    this.before = null;
    this.rows = h("tbody", { role: "rowgroup" });
    this.tail = h("div", { class: "budgets-more" });
    // Named, since on a phone they are shown as cards and no browser would take them for a table.
    const head = h("tr", { role: "row" }, COLUMNS.map((name) =>
      h("th", { scope: "col", role: "columnheader", class: NUMBERS.has(name) ? "number" : null }, t(`budgets.entry.${name}`))));
    this.table = h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": t("budgets.journal") },
      h("table", { class: "table journal", role: "table" }, h("thead", { role: "rowgroup" }, head), this.rows));
    this.nothing = h("p", { class: "dim", hidden: true }, t("budgets.journal.none"));
    this.element = card(t("budgets.journal"), {}, h("p", { class: "dim small" }, t("budgets.journal.note")),
      this.nothing, this.table, this.tail);
  }

  /** The newest ones. Were there so many that they do not reach those that are shown, the list begins anew. @param {AbortSignal} signal */
  async refresh(signal) {
    const answer = await get(this.path, { limit: PAGE }, signal);
    const lines = linesOf(answer);
    const newest = this.ids[0] ?? 0;
    const fresh = lines.filter((line) => line.txn_id > newest);
    if (fresh.length === lines.length) {
      put(this.rows);
      this.ids = [];
      this.before = beforeOf(answer);
    }
    this.rows.prepend(...fresh.map(row));
    this.ids.unshift(...fresh.map((line) => line.txn_id));
    this.draw();
  }

  async readOn() {
    const { before } = this;
    await act(async () => {
      const answer = await get(this.path, { limit: PAGE, before });
      if (before !== this.before) return; // it began anew meanwhile
      const lines = linesOf(answer).filter((line) => line.txn_id < (this.ids.at(-1) ?? Infinity));
      this.rows.append(...lines.map(row));
      this.ids.push(...lines.map((line) => line.txn_id));
      this.before = beforeOf(answer);
      this.draw();
    });
  }

  draw() {
    this.nothing.hidden = this.ids.length > 0;
    this.table.hidden = this.ids.length === 0;
    const state = this.ids.length === 0 ? "none" : this.before === null ? "end" : this.ids.length >= LINES_MAX ? "full" : "older";
    if (this.tail.dataset.state === state) return;
    this.tail.dataset.state = state;
    put(this.tail,
      state === "older" ? actButton(t("budgets.journal.older"), () => this.readOn(), { icon: "down" }) : null,
      state === "end" ? h("p", { class: "dim small" }, t("budgets.journal.end")) : null,
      state === "full" ? h("p", { class: "dim small" }, t("budgets.journal.full", { n: count(LINES_MAX) })) : null);
  }
}

/**
 * @param {any} answer
 * @returns {JournalLine[]} the newest first
 */
function linesOf(answer) {
  return list(answer?.lines).filter((line) => Number.isSafeInteger(line?.txn_id));
}

/** @param {any} answer */
function beforeOf(answer) {
  return Number.isSafeInteger(answer?.next_before) ? /** @type {number} */ (answer.next_before) : null;
}

/** @param {JournalLine} line */
function row(line) {
  const at = instant(line.created_at);
  const run = textOf(line.run_id);
  const memo = textOf(line.memo);
  const cell = (/** @type {typeof COLUMNS[number]} */ name, /** @type {string | null} */ kind, /** @type {any} */ inside, more = {}) =>
    h("td", { class: kind, role: "cell", "data-name": t(`budgets.entry.${name}`), ...more }, inside);
  return h("tr", { role: "row", "data-txn": line.txn_id },
    cell("time", "journal-time", at === null ? "–" : dateTime(at)),
    cell("kind", "journal-kind", wordFor("budgets.kind", textOf(line.kind))),
    cell("available", "number", change(line.available_usd_micros)),
    cell("held", "number", change(line.held_usd_micros)),
    cell("charged", "number", change(line.charged_usd_micros)),
    cell("run", null, run === "" ? "–" : h("a", { class: "mono", href: href("runs", [run]), title: run }, shortId(run))),
    cell("by", null, wordFor("budgets.by", textOf(line.actor))),
    cell("memo", "journal-memo", memo, { title: memo.slice(0, 2000) }));
}
