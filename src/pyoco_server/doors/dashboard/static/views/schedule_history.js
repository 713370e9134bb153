// What became of every tick, page by page, the newest first.

import { act } from "../lib/act.js";
import { get } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { list } from "../lib/fleet.js";
import { shortId } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { KeyedList } from "../lib/keyed.js";
import { actButton, card, refill, since } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { haveSeconds, keyOf, reasonOf, tickTime } from "../lib/schedule_ticks.js";
import { outcomeBadge } from "./schedule_parts.js";

/** @typedef {import("../lib/schedule_wire.js").ScheduleTick} ScheduleTick */

const PAGE = 20;
const OUTCOMES = /** @type {const} */ (["run", "waiting", "skipped", "refused"]);
const COLUMNS = /** @type {const} */ (["tick", "state", "source", "run", "handled", "reason"]);

export class ScheduleHistory {
  /** @param {string} path of the schedule */
  constructor(path) {
    this.path = `${path}/ticks`;
    this.zone = "UTC";
    this.seconds = false;
    /** @type {string[]} where each page that was passed begins; the last is the one that is shown */
    this.cursors = [""];
    /** @type {string | null} */
    this.next = null;
    this.outcome = h("select", { "aria-label": t("schedules.history.outcome"), onchange: () => void this.turn([""]) },
      h("option", { value: "" }, t("schedules.history.all")),
      OUTCOMES.map((each) => h("option", { value: each }, t(`schedules.outcome.${each}`))));
    /** @type {KeyedList<ScheduleTick>} */
    this.rows = new KeyedList(h("tbody", { role: "rowgroup" }), (entry) => `${keyOf(entry)} ${entry.run_id ?? ""}`, () => new HistoryRow(this));
    // Named, since on a phone they are shown as cards and no browser would take them for a table.
    const head = h("tr", { role: "row" }, COLUMNS.map((name) => h("th", { scope: "col", role: "columnheader" }, t(`schedules.entry.${name}`))));
    this.table = h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": t("schedules.history") },
      h("table", { class: "table journal", role: "table" }, h("thead", { role: "rowgroup" }, head), this.rows.element));
    this.none = h("p", { class: "dim", hidden: true }, t("schedules.history.none"));
    this.newer = actButton(t("schedules.history.newer"), () => this.turn(this.cursors.slice(0, -1)));
    this.older = actButton(t("schedules.history.older"), () => this.turn([...this.cursors, this.next ?? ""]));
    this.pages = h("div", { class: "chips", role: "group", "aria-label": t("schedules.history.pages") }, this.newer, this.older);
    this.element = card(t("schedules.history"), { actions: this.outcome }, this.none, this.table, this.pages);
  }

  /**
   * @param {string} zone
   * @param {AbortSignal} [signal]
   */
  async look(zone, signal) {
    const { cursors } = this;
    const outcome = this.outcome.value;
    const answer = await get(this.path, { limit: PAGE, outcome, cursor: cursors.at(-1) }, signal);
    if (cursors !== this.cursors || outcome !== this.outcome.value) return; // another page was turned to meanwhile
    this.zone = zone;
    this.next = typeof answer?.next_cursor === "string" ? answer.next_cursor : null;
    /** @type {ScheduleTick[]} */
    const entries = list(answer?.items);
    this.seconds = haveSeconds(entries);
    this.rows.show(entries);
    this.none.hidden = entries.length > 0;
    this.table.hidden = entries.length === 0;
    this.newer.disabled = cursors.length === 1;
    this.older.disabled = this.next === null;
    this.pages.hidden = this.newer.disabled && this.older.disabled;
  }

  /** @param {string[]} cursors */
  async turn(cursors) {
    this.cursors = cursors;
    await act(() => this.look(this.zone));
  }
}

class HistoryRow {
  /** @param {{ zone: string, seconds: boolean }} how */
  constructor(how) {
    this.how = how;
    this.cells = COLUMNS.map((name) => h("td", {
      role: "cell", class: name === "reason" ? "journal-memo" : null, "data-name": t(`schedules.entry.${name}`),
    }));
    this.element = h("tr", { role: "row" }, this.cells);
  }

  /** @param {ScheduleTick} entry */
  update(entry) {
    const { zone, seconds } = this.how;
    const run = entry.run_id ?? "";
    const made = /** @type {Record<typeof COLUMNS[number], () => import("../lib/dom.js").Child>} */ ({
      tick: () => tickTime(entry, zone, seconds || undefined) + (entry.count ? ` (×${entry.count})` : ""),
      state: () => outcomeBadge(entry),
      source: () => wordFor("schedules.source", String(entry.source)),
      run: () => (run === "" ? null : h("a", { class: "mono", href: href("runs", [run]), title: run }, shortId(run))),
      handled: () => since(entry.handled_at),
      reason: () => reasonOf(entry),
    });
    this.cells.forEach((cell, at) => refill(cell, [entry, zone, seconds], () => [made[COLUMNS[at] ?? "tick"]()].flat()));
  }
}
