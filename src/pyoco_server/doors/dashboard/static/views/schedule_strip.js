// A calendar of what became of the last ticks: a cell for each, by day or by month.

import { h, put, write } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { KeyedList } from "../lib/keyed.js";
import { card, refill } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { groupsOf, keyOf, stateOf, stateWord, tickWords } from "../lib/schedule_ticks.js";
import { rove } from "./run_rove.js";
import { stateIcon } from "./schedule_parts.js";

/** @typedef {import("../lib/schedule_wire.js").ScheduleTick} ScheduleTick */
/** @typedef {ReturnType<typeof groupsOf>[number]} Group */

export class ScheduleStrip {
  constructor() {
    this.zone = "UTC";
    this.legend = h("div", { class: "chips small" });
    /** What the cell says that is pointed at, or has the focus. */
    this.told = h("p", { class: "small dim schedule-told", "aria-hidden": "true" }, t("schedules.strip.hint"));
    this.none = h("p", { class: "dim", hidden: true }, t("schedules.strip.none"));
    /** @type {KeyedList<Group>} */
    this.groups = new KeyedList(h("div", { class: "schedule-strip", role: "group", "aria-label": t("schedules.strip") }),
      (group) => group.label, () => new Days((entry) => this.cell(entry)));
    this.settle = rove(this.groups.element, ".tick", true);
    this.element = card(t("schedules.strip"), { actions: this.legend }, this.none, this.groups.element, this.told);
  }

  /**
   * @param {ScheduleTick[]} entries
   * @param {string} zone
   */
  show(entries, zone) {
    this.zone = zone;
    this.none.hidden = entries.length > 0;
    this.told.hidden = this.groups.element.hidden = entries.length === 0;
    this.groups.show(groupsOf(entries, zone));
    this.settle();
    /** @type {Map<string, number>} */
    const states = new Map();
    for (const entry of entries) states.set(stateOf(entry), (states.get(stateOf(entry)) ?? 0) + (entry.count ?? 1));
    refill(this.legend, [...states], () => [...states].map(([state, n]) => h("span", { class: `badge status-${state.toLowerCase()}` },
      stateIcon(state), t("schedules.strip.legend", { state: stateWord(state), n: count(n) }))));
  }

  /** @param {ScheduleTick} first */
  cell(first) {
    const cell = new Cell(first, () => this.zone);
    const tell = () => write(this.told, cell.words);
    for (const event of ["focus", "pointerenter"]) cell.element.addEventListener(event, tell);
    return cell;
  }
}

class Days {
  /** @param {(entry: ScheduleTick) => Cell} make */
  constructor(make) {
    this.label = h("p", { class: "small dim" });
    /** @type {KeyedList<ScheduleTick>} */
    this.cells = new KeyedList(h("div", { class: "schedule-cells" }), (entry) => `${keyOf(entry)} ${entry.run_id ?? ""}`, make);
    this.element = h("div", { class: "schedule-group" }, this.label, this.cells.element);
  }

  /** @param {Group} group */
  update(group) {
    write(this.label, group.label);
    this.cells.show(group.entries);
  }
}

class Cell {
  /**
   * @param {ScheduleTick} entry
   * @param {() => string} zone
   */
  constructor(entry, zone) {
    this.zone = zone;
    this.words = "";
    this.made = "";
    this.element = entry.run_id ? h("a", { class: "tick", href: href("runs", [entry.run_id]) })
      : h("span", { class: "tick", role: "img", tabindex: "-1" });
  }

  /** @param {ScheduleTick} entry */
  update(entry) {
    const state = stateOf(entry);
    this.words = tickWords(entry, this.zone());
    if (this.made === this.words) return;
    this.made = this.words;
    const shape = entry.source === "trigger" ? " triggered" : entry.count ? " series" : "";
    this.element.className = `tick status-${state.toLowerCase()}${shape}`;
    this.element.title = this.words;
    this.element.setAttribute("aria-label", this.words);
    put(this.element, stateIcon(state), entry.count ? h("span", { class: "number" }, `×${count(entry.count)}`) : null);
  }
}
