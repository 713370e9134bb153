// When each task ran, over one axis. Bars are placed by the style sheet from a few numbers: a tick sets two of them,
// however many rows there are.

import { now, ticks } from "../lib/clock.js";
import { h, put, write } from "../lib/dom.js";
import { count, markText, preciseTime, span } from "../lib/format.js";
import { chartOf, domainOf, ticksOf } from "../lib/gantt.js";
import { t, wordFor } from "../lib/i18n.js";
import { button, card, refill, statusIcon } from "../lib/parts.js";
import { isTerminal } from "../lib/run_facts.js";
import { rove } from "./run_rove.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/gantt.js").Chart} Chart */
/** @typedef {import("../lib/gantt.js").Bar} Bar */
/** @typedef {{ element: HTMLElement, label: HTMLButtonElement, track: HTMLElement, took: HTMLElement, made: string }} Row */

const MARK_PIXELS = 90;

export class GanttSection {
  /** @param {import("./run_kinds.js").RunPage} page */
  constructor(page) {
    this.page = page;
    /** @type {Chart | null} */
    this.chart = null;
    /** @type {boolean | null} null: as fits */
    this.whole = null;
    /** @type {ReturnType<typeof domainOf> | null} */
    this.domain = null;
    this.base = 0;
    this.ended = false;
    this.order = "";
    /** @type {Map<string, Row>} */
    this.rows = new Map();
    this.wholeButton = button(t("run.timeline.whole"), () => this.toggle(), { pressed: false });
    this.note = h("p", { class: "dim small" });
    this.axis = h("div", { class: "gantt-axis", "aria-hidden": "true" });
    this.before = h("ol", { class: "gantt-rows" });
    this.list = h("ol", { class: "gantt-rows" });
    this.settle = rove(this.list, "button");
    this.grid = h("div", { class: "gantt-grid", "aria-hidden": "true" });
    this.frame = h("div", { class: "gantt" }, this.axis, this.grid, this.before, this.list);
    this.element = card(t("run.timeline"), { actions: this.wholeButton }, this.note, this.frame);
    this.unfollowTicks = ticks.follow(() => this.tick());
    this.unfollow = page.selected.follow(() => this.mark());
    this.room = 0; // asked for once for each size: asking after each change would lay out the page twice
    this.watching = new ResizeObserver(([entry]) => {
      this.room = entry?.contentRect.width ?? 0;
      this.drawAxis();
    });
    this.watching.observe(this.axis);
  }

  close() {
    this.unfollowTicks();
    this.unfollow();
    this.watching.disconnect();
  }

  toggle() {
    this.whole = this.chart === null ? null : !domainOf(this.chart, now(), this.whole).whole;
    this.tick();
  }

  /** @param {Run} run */
  show(run) {
    const chart = chartOf(run);
    this.chart = chart;
    this.ended = isTerminal(run.status);
    const first = chart.queued?.from ?? chart.past[0]?.from ?? chart.present?.from;
    this.base = first ?? this.base; // instants as offsets: the style sheet's numbers have few digits
    this.element.hidden = first === undefined && chart.tasks.length === 0;
    this.showBefore(run, chart);
    this.showTasks(chart);
    this.tick();
  }

  /** The queue, earlier attempts, and the run as a whole. @param {Run} run @param {Chart} chart */
  showBefore(run, chart) {
    const present = t(chart.past.length > 0 ? "run.timeline.attempt" : "run.title", { n: run.attempt ?? "–" });
    const made = [chart.queued, chart.past, chart.present, run.attempt, run.status, run.worker_id, this.base];
    refill(this.before, made, () => [
      chart.queued && this.wideRow(t("run.timeline.queued"), "", "queued", chart.queued, "pending"),
      ...chart.past.map((each) => this.wideRow(t("run.timeline.attempt", { n: each.attempt ?? "–" }),
        [each.worker, wordFor("run.why", each.why)].filter(Boolean).join(" · "), "past", each, "stale")),
      chart.present && this.wideRow(present, run.worker_id ?? "", `whole status-${String(run.status).toLowerCase()}`,
        chart.present, null, String(run.status)),
    ]);
  }

  /**
   * @param {string} name
   * @param {string} more
   * @param {string} kind
   * @param {{ from: number, to: number | null }} bar
   * @param {string | null} image
   * @param {string} [state]
   */
  wideRow(name, more, kind, bar, image, state = "") {
    const title = [name, more].filter(Boolean).join(", ");
    const words = exact(title, state === "" ? "" : wordFor("status", state), bar.from, bar.to);
    const picture = image === null ? statusIcon(state) : statusIcon(image.toUpperCase());
    return h("li", { class: "gantt-row gantt-wide", title: words },
      h("span", { class: "gantt-name" }, picture, h("span", { class: "one-line" }, name)),
      h("div", { class: "gantt-track" }, this.bar(kind, bar.from, bar.to)),
      h("span", { class: "gantt-took number" }, this.took(bar.from, bar.to, null)));
  }

  /** @param {Chart} chart */
  showTasks(chart) {
    for (const bar of chart.tasks) this.showTask(bar);
    const names = new Set(chart.tasks.map((bar) => bar.name));
    const order = JSON.stringify([...names]);
    if (order === this.order) return;
    this.order = order;
    for (const name of this.rows.keys()) if (!names.has(name)) this.rows.delete(name);
    const held = document.activeElement;
    put(this.list, ...[...names].map((name) => /** @type {Row} */ (this.rows.get(name)).element));
    if (held instanceof HTMLElement && this.list.contains(held)) held.focus({ preventScroll: true });
    this.settle();
    this.mark();
  }

  /** @param {Bar} bar */
  showTask(bar) {
    const row = this.rows.get(bar.name) ?? this.makeRow(bar.name);
    const made = JSON.stringify([bar, this.base]);
    if (made === row.made) return;
    row.made = made;
    const state = wordFor("status", bar.state);
    const waited = bar.waitsFrom !== null && bar.from !== null && bar.from > bar.waitsFrom
      ? ` · ${t("run.timeline.waited", { span: span(bar.from - bar.waitsFrom) })}` : "";
    const words = bar.from === null ? t("run.timeline.unbegun", { name: bar.name, state })
      : exact(bar.name, state, bar.from, bar.to, bar.seconds) + waited;
    row.element.title = words;
    row.label.setAttribute("aria-label", words);
    put(row.label, statusIcon(bar.state), h("span", { class: "one-line" }, bar.name));
    row.label.className = `gantt-name status-${bar.state.toLowerCase()}`;
    put(row.track, bar.waitsFrom === null ? null : this.bar("waits", bar.waitsFrom, bar.waitsTo),
      bar.from === null ? null : this.bar(`task status-${bar.state.toLowerCase()}`, bar.from, bar.to));
    put(row.took, bar.from === null ? null : this.took(bar.from, bar.to, bar.seconds));
  }

  /**
   * @param {string} name
   * @returns {Row}
   */
  makeRow(name) {
    const label = h("button", {
      type: "button", class: "gantt-name",
      onclick: () => this.page.selected.set(this.page.selected.value === name ? null : name),
    });
    const track = h("div", { class: "gantt-track" });
    const took = h("span", { class: "gantt-took number" });
    const row = { element: h("li", { class: "gantt-row" }, label, track, took), label, track, took, made: "" };
    this.rows.set(name, row);
    return row;
  }

  /**
   * @param {string} kind
   * @param {number} from
   * @param {number | null} to null: it grows with the axis
   */
  bar(kind, from, to) {
    /** @type {Record<string, string | number>} */
    const style = { "--a": digits(from - this.base) };
    if (to !== null) style["--b"] = digits(to - this.base);
    return h("div", { class: `gantt-bar ${kind}`, style });
  }

  /**
   * @param {number} from
   * @param {number | null} to
   * @param {number | null} seconds
   */
  took(from, to, seconds) {
    if (to !== null) return h("span", null, span(seconds ?? to - from));
    return h("time", { "data-at": from, "data-as": "span" }, span(Math.max(0, Math.floor(now() - from))));
  }

  mark() {
    const chosen = this.page.selected.value;
    for (const [name, row] of this.rows) {
      row.element.classList.toggle("on", name === chosen);
      row.label.setAttribute("aria-pressed", String(name === chosen));
    }
  }

  /** Once a second, and after each change: the axis grows, and with it what goes on. */
  tick() {
    if (this.chart === null || this.element.hidden) return;
    const at = now();
    const domain = domainOf(this.chart, at, this.whole);
    if (this.domain?.from === domain.from && this.domain.to === domain.to) return; // it has ended: nothing grows
    this.domain = domain;
    const length = Math.max(0.001, domain.to - domain.from);
    this.frame.style.setProperty("--from", digits(domain.from - this.base));
    this.frame.style.setProperty("--length", digits(length));
    this.frame.style.setProperty("--now", digits(Math.max(at, domain.from) - this.base));
    this.wholeButton.hidden = !this.isLong(domain);
    this.wholeButton.setAttribute("aria-pressed", String(domain.whole));
    const bars = this.chart.tasks;
    const words = [
      this.chart.present === null && this.chart.past.length === 0
        ? t(this.ended ? "run.timeline.never" : "run.timeline.none") : "",
      this.ended && bars.length > 0 && bars.every((bar) => bar.from === null) ? t("run.timeline.no_times") : "",
      domain.cut ? t("run.timeline.cut", { span: span(domain.zero - (this.chart.queued?.from ?? domain.zero)) }) : "",
    ];
    write(this.note, words.filter(Boolean).join(" "));
    this.note.hidden = this.note.textContent === "";
    this.drawAxis();
  }

  /** @param {ReturnType<typeof domainOf>} domain */
  isLong(domain) {
    return domain.cut || (this.whole !== null && this.chart !== null && domainOf(this.chart, now(), null).cut);
  }

  drawAxis() {
    const domain = this.domain;
    if (domain === null) return;
    const zero = domain.zero;
    const to = Math.max(domain.to, domain.from + 0.001);
    const marks = ticksOf(domain.from - zero, to - zero, Math.max(2, Math.floor(this.room / MARK_PIXELS)));
    const style = (/** @type {number} */ at) => ({ "--at": digits(zero + at - this.base) });
    const made = [marks, zero - this.base];
    const step = (marks[1] ?? 1) - (marks[0] ?? 0);
    const largest = Math.max(...marks.map(Math.abs));
    refill(this.axis, made, () => marks.map((at) => h("span", { class: "gantt-mark", style: style(at) },
      at === 0 ? "0" : `${at < 0 ? "−" : ""}${markText(Math.abs(at), step, largest)}`)));
    refill(this.grid, made, () => marks.map((at) => h("span", { class: "gantt-line", style: style(at) })));
  }
}

/** @param {number} value */
function digits(value) {
  return value.toFixed(4);
}

/**
 * @param {string} name
 * @param {string} state
 * @param {number} from
 * @param {number | null} to
 * @param {number | null} [seconds]
 */
function exact(name, state, from, to, seconds) {
  const lasted = to === null ? null : (seconds ?? to - from);
  const took = lasted === null ? "…" : lasted < 0.001 ? span(lasted) : t("span.ms", { n: count(Math.round(lasted * 1000)) });
  const facts = { name, state, from: preciseTime(from), to: to === null ? "…" : preciseTime(to), took };
  return t(state === "" ? "run.timeline.exact_plain" : "run.timeline.exact", facts);
}
