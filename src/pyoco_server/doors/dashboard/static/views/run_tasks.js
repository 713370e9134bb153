// Every task as a line that opens: what it was given, what came out, and what went wrong. It says all that the graph
// and the timeline show, in words.

import { h, put, write } from "../lib/dom.js";
import { count, dateTime, preciseTime } from "../lib/format.js";
import { chartOf } from "../lib/gantt.js";
import { t, wordFor } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { badge, card, refill } from "../lib/parts.js";
import { isTerminal, recordOf } from "../lib/run_facts.js";
import { fillRecord, tookOf } from "./run_record.js";
import { rove } from "./run_rove.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/gantt.js").Bar} Bar */
/**
 * @typedef {object} Line
 * @property {HTMLElement} element
 * @property {HTMLDetailsElement} details
 * @property {HTMLElement} head
 * @property {HTMLElement} body
 * @property {string} state
 */

/** With fewer, one sees them all. */
const FIND_FROM = 9;
/** In this order, whatever comes first in the run. */
const STATES = ["FAILED", "RUNNING", "PENDING", "NOT_RUN", "CANCELLED", "SUCCEEDED"];

export class TasksSection {
  /** @param {import("./run_kinds.js").RunPage} page */
  constructor(page) {
    this.page = page;
    /** @type {Run | null} */
    this.run = null;
    /** @type {Map<string, Bar>} */
    this.bars = new Map();
    /** @type {Map<string, Line>} */
    this.lines = new Map();
    this.order = "";
    this.settled = "";
    this.wantedState = "";
    this.chips = h("div", { class: "chips" });
    this.find = h("input", {
      type: "search", placeholder: t("run.tasks.find"), "aria-label": t("run.tasks.find"), autocomplete: "off",
      oninput: () => this.filter(),
    });
    this.mark = h("p", { class: "mark", hidden: true }, t("run.tasks.truncated"));
    this.none = h("p", { class: "dim", role: "status", hidden: true });
    this.list = h("ol", { class: "run-tasks" });
    this.settle = rove(this.list, "summary");
    this.tools = h("div", { class: "run-task-tools" }, this.chips, this.find);
    this.element = card(t("run.tasks"), {}, this.tools, this.mark, this.none, this.list);
    this.unfollow = page.selected.follow((name) => this.reveal(name));
  }

  close() {
    this.unfollow();
  }

  /** @param {Run} run */
  show(run) {
    this.run = run;
    const bars = chartOf(run).tasks;
    this.bars = new Map(bars.map((bar) => [bar.name, bar]));
    this.mark.hidden = run.task_records_truncated !== true;
    this.tools.hidden = bars.length === 0;
    this.find.hidden = bars.length < FIND_FROM;
    for (const bar of bars) this.showLine(bar);
    this.showChips(bars);
    this.arrange([...this.bars.keys()]);
    this.filter();
  }

  /** @param {Bar} bar */
  showLine(bar) {
    const line = this.lines.get(bar.name) ?? this.makeLine(bar.name);
    const record = this.run && recordOf(this.run, bar.name);
    const error = typeof record?.error === "string" ? record.error.slice(0, 300) : "";
    line.state = bar.state;
    refill(line.head, [bar, error], () => [
      icon("down"), badge(bar.state), h("span", { class: "run-task-name one-line", title: bar.name }, bar.name),
      h("span", { class: "run-task-error one-line" }, error),
      h("span", { class: "number dim", title: bar.from && dateTime(bar.from) }, bar.from && preciseTime(bar.from)),
      h("span", { class: "number run-task-took" }, tookOf(bar)),
    ]);
    if (line.details.open) this.fillBody(bar.name, line);
  }

  /**
   * @param {string} name
   * @returns {Line}
   */
  makeLine(name) {
    const head = h("summary");
    const body = h("div", { class: "run-task-body" });
    const details = h("details", { ontoggle: () => this.onToggle(name) }, head, body);
    const line = { element: h("li", { "data-task": name }, details), details, head, body, state: "" };
    this.lines.set(name, line);
    return line;
  }

  /** What is closed is not made: records may be large. @param {string} name */
  onToggle(name) {
    const line = this.lines.get(name);
    if (line?.details.open) this.fillBody(name, line);
  }

  /**
   * @param {string} name
   * @param {Line} line
   */
  fillBody(name, line) {
    const bar = this.bars.get(name);
    if (this.run !== null && bar !== undefined) fillRecord(line.body, this.run, bar, this.page);
  }

  /** @param {Bar[]} bars */
  showChips(bars) {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (const bar of bars) counts.set(bar.state, (counts.get(bar.state) ?? 0) + 1);
    if (!counts.has(this.wantedState)) this.wantedState = "";
    const states = [...counts.keys()].sort((one, two) => rank(one) - rank(two));
    refill(this.chips, [states.map((state) => [state, counts.get(state)]), this.wantedState], () => [
      this.chip("", t("run.tasks.all"), bars.length),
      ...states.map((state) => this.chip(state, wordFor("status", state), counts.get(state) ?? 0)),
    ]);
  }

  /**
   * @param {string} state
   * @param {string} word
   * @param {number} number
   */
  chip(state, word, number) {
    return h("button", {
      type: "button", class: "chip", "aria-pressed": String(this.wantedState === state), "data-state": state,
      onclick: () => {
        this.wantedState = state;
        this.showChips([...this.bars.values()]);
        this.filter();
        [...this.chips.querySelectorAll("button")].find((each) => each.dataset.state === state)?.focus();
      },
    }, word, h("span", { class: "number" }, count(number)));
  }

  /** @param {string[]} names */
  arrange(names) {
    const order = JSON.stringify(names);
    if (order === this.order) return;
    this.order = order;
    for (const name of this.lines.keys()) if (!this.bars.has(name)) this.lines.delete(name);
    const held = document.activeElement;
    const top = this.list.scrollTop;
    put(this.list, ...names.map((name) => this.lines.get(name)?.element));
    this.list.scrollTop = top;
    this.reveal(this.page.selected.value);
    if (held instanceof HTMLElement && this.list.contains(held)) held.focus({ preventScroll: true });
  }

  filter() {
    const wanted = this.find.hidden ? "" : this.find.value.trim().toLowerCase();
    let shown = 0;
    let changed = this.settled !== this.order;
    for (const [name, line] of this.lines) {
      const fits = (this.wantedState === "" || line.state === this.wantedState) && name.toLowerCase().includes(wanted);
      if (line.element.hidden === fits) {
        line.element.hidden = !fits;
        changed = true;
      }
      if (fits) shown += 1;
    }
    if (changed) this.settle();
    this.settled = this.order;
    this.none.hidden = shown > 0;
    const ended = this.run !== null && isTerminal(this.run.status);
    write(this.none, t(this.lines.size > 0 ? "run.tasks.no_match" : ended ? "run.tasks.never" : "run.tasks.none"));
  }

  /** In the list only: the page stays where it is. @param {string | null} name */
  reveal(name) {
    for (const [each, line] of this.lines) line.element.classList.toggle("on", each === name);
    const line = name === null ? undefined : this.lines.get(name);
    if (line === undefined || line.element.hidden) return;
    const { top, bottom } = line.element.getBoundingClientRect();
    const frame = this.list.getBoundingClientRect();
    if (top < frame.top) this.list.scrollTop -= frame.top - top;
    else if (bottom > frame.bottom) this.list.scrollTop += bottom - frame.bottom;
  }
}

/** @param {string} state */
function rank(state) {
  const place = STATES.indexOf(state);
  return place < 0 ? STATES.length : place;
}
