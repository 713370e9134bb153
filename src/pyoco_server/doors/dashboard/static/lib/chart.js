// A chart over time, drawn by hand: lines and stacked bars, a cursor that mouse and keys move, and the same as a table.

import { h, put, svg, write } from "./dom.js";
import { clockTime, timeOfDay } from "./format.js";
import { t } from "./i18n.js";
import { barPath, dotPath, largest, linear, linePath, timeTicks } from "./scale.js";

/** @typedef {import("./recent.js").Table} Table */
/**
 * @typedef {object} Series
 * @property {string} key                              the column
 * @property {string} name
 * @property {"ok" | "bad" | "off" | "run" | "wait" | "accent" | "text"} tone
 * @property {"bar" | "solid" | "dashed" | "dotted"} as  bars are put upon each other in this order
 * @property {boolean} [hatched]                       so that a bar is told apart without its colour
 */
/**
 * @typedef {object} Chart.How
 * @property {string} title
 * @property {Series[]} series
 * @property {(value: number) => string} format
 * @property {(top: number) => number[]} ticks
 * @property {import("./events.js").Signal<number | null>} cursor  the instant that is pointed at, in all charts at once
 * @property {string} [class]
 * @property {TimeWords} [time]                        for steps that are longer than a minute or so
 */
/**
 * @typedef {object} TimeWords  how an axis and its table tell instants
 * @property {(from: number, to: number, most: number) => number[]} ticks
 * @property {(at: number) => string} tick
 * @property {(at: number) => string} whole
 */
/**
 * @typedef {object} Shown
 * @property {Table} table
 * @property {number} from       where the axis begins
 * @property {number} to
 * @property {string} now        the value to show beside the title
 * @property {string} range
 * @property {string} summary    the chart in a sentence
 * @property {string} [empty]    what to say in place of lines
 */

const HEIGHT = 150;
const TOP = 8;
const BOTTOM = 20;
const END = 6;
const TICK_WIDTH = 84;
let made = 0;

/** @type {TimeWords} */
const BY_THE_CLOCK = { ticks: timeTicks, tick: clockTime, whole: timeOfDay };

export class Chart {
  /** @param {Chart.How} how */
  constructor(how) {
    this.time = how.time ?? BY_THE_CLOCK;
    made += 1;
    this.id = `chart-${made}`;
    this.how = how;
    /** @type {Shown | null} */
    this.shown = null;
    this.width = 0;
    this.value = h("span", { class: "chart-now number" });
    this.range = h("span", { class: "dim small number" });
    this.drawing = svg("svg", { class: "chart-drawing", height: HEIGHT, "aria-hidden": "true", focusable: "false" });
    this.spoken = h("p", { class: "unseen", "aria-live": "polite" });
    this.plot = h("div", {
      class: "chart-plot", tabindex: "0", role: "img", "aria-label": how.title,
      onpointermove: (/** @type {PointerEvent} */ event) => this.point(event),
      onpointerdown: (/** @type {PointerEvent} */ event) => this.point(event),
      onpointerleave: () => how.cursor.set(null),
      onblur: () => how.cursor.set(null),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.onKey(event),
    }, this.drawing);
    this.when = h("span", { class: "chart-when number" });
    this.entries = how.series.map((series) => ({ series, value: h("span", { class: "number" }, "–") }));
    this.asTable = new ChartTable(how);
    this.element = h("section", { class: `card chart ${how.class ?? ""}`, "aria-label": how.title },
      h("header", { class: "chart-head" }, h("h2", null, how.title), this.value, this.range),
      this.plot, this.spoken, this.legend(), this.asTable.element);
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(this.plot);
    this.unfollow = how.cursor.follow(() => this.showCursor());
  }

  close() {
    this.observer.disconnect();
    this.unfollow();
  }

  legend() {
    const lines = this.entries.map(({ series, value }) =>
      h("li", null, this.swatch(series), h("span", { class: "chart-name" }, series.name), value));
    return h("div", { class: "chart-legend" }, h("ul", null, lines), this.when);
  }

  /** @param {Series} series */
  swatch(series) {
    const shape = series.as === "bar" ?
      svg("rect", { x: 2, y: 1, width: 18, height: 10, class: `bar tone-${series.tone}` }) :
      svg("path", { d: "M1 6h20", class: `line ${series.as} tone-${series.tone}` });
    const hatch = series.hatched ? svg("path", { d: "M3 11l7-10M9 11l7-10M15 11l5-7", class: "hatch-line" }) : null;
    return svg("svg", { class: "chart-swatch", width: 22, height: 12, "aria-hidden": "true" }, shape, hatch);
  }

  /** @param {Shown} shown */
  show(shown) {
    this.shown = shown;
    write(this.value, shown.now);
    write(this.range, shown.range);
    this.plot.setAttribute("aria-label", `${this.how.title}. ${shown.summary} ${t("metrics.keys")}`);
    this.asTable.show(shown);
    this.draw();
  }

  resized() {
    const width = this.plot.clientWidth;
    if (width === this.width) return;
    this.width = width;
    this.draw();
  }

  draw() {
    if (this.shown === null || this.width === 0) return;
    const { table, from, to, empty } = this.shown;
    const bars = this.how.series.filter((each) => each.as === "bar");
    const stacked = table.at.map((_, place) => bars.reduce((sum, each) => sum + (table.columns[each.key]?.[place] ?? 0), 0));
    const lines = this.how.series.filter((each) => each.as !== "bar").map((each) => table.columns[each.key] ?? []);
    const ticks = this.how.ticks(largest([stacked, ...lines]));
    const labels = ticks.map(this.how.format);
    const start = Math.max(...labels.map(widthOf)) + 8;
    this.x = linear(from, to, start, this.width - END);
    this.y = linear(0, ticks.at(-1) ?? 1, HEIGHT - BOTTOM, TOP);
    this.start = start;
    this.pointer = svg("g", { class: "chart-pointer" });
    this.drawing.setAttribute("width", String(this.width));
    put(this.drawing, this.hatch(), this.axes(ticks, labels),
      svg("g", null, this.bars(bars), this.lines()), this.pointer,
      empty ? svg("text", { class: "chart-empty", x: (start + this.width) / 2, y: HEIGHT / 2 - 6 }, empty) : null);
    this.showCursor();
  }

  hatch() {
    return svg("defs", null,
      svg("pattern", { id: this.id, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        svg("path", { d: "M0 0v5", class: "hatch-line" })));
  }

  /**
   * @param {number[]} ticks
   * @param {string[]} labels
   */
  axes(ticks, labels) {
    const [x, y] = [/** @type {(at: number) => number} */ (this.x), /** @type {(value: number) => number} */ (this.y)];
    const { from, to } = /** @type {Shown} */ (this.shown);
    const times = this.time.ticks(from, to, (this.width - (this.start ?? 0)) / TICK_WIDTH);
    const last = this.width - END;
    return svg("g", { class: "chart-axes" },
      ticks.map((tick) => svg("path", { d: `M${this.start} ${y(tick)}H${last}`, class: tick === 0 ? "base" : "grid" })),
      ticks.map((tick, place) => svg("text", { x: (this.start ?? 0) - 6, y: y(tick) + 4, class: "end" }, labels[place])),
      times.map((at) => svg("text", { x: x(at), y: HEIGHT - 4, class: edge(x(at), last) }, this.time.tick(at))));
  }

  /** @param {Series[]} bars */
  bars(bars) {
    const [x, y] = [/** @type {(at: number) => number} */ (this.x), /** @type {(value: number) => number} */ (this.y)];
    const { table, from, to } = /** @type {Shown} */ (this.shown);
    const width = x(Math.min(from + table.step, to)) - x(from);
    const gap = width > 4 ? 1 : 0;
    const bottoms = table.at.map(() => 0);
    return bars.flatMap((series) => {
      const values = table.columns[series.key] ?? [];
      const d = barPath(bottoms, values, (place) => x(table.at[place] ?? 0) + gap / 2, Math.max(1, width - gap), y);
      values.forEach((value, place) => { bottoms[place] = (bottoms[place] ?? 0) + (value ?? 0); });
      return [
        svg("path", { d, class: `bar tone-${series.tone}` }),
        series.hatched ? svg("path", { d, fill: `url(#${this.id})` }) : null,
      ];
    });
  }

  lines() {
    const y = /** @type {(value: number) => number} */ (this.y);
    const x = (/** @type {number} */ place) => this.middle(place);
    return this.how.series.filter((series) => series.as !== "bar").flatMap((series) => {
      const values = /** @type {Shown} */ (this.shown).table.columns[series.key] ?? [];
      return [
        svg("path", { d: linePath(values, x, y), class: `line ${series.as} tone-${series.tone}` }),
        svg("path", { d: dotPath(values, x, y), class: `line dot tone-${series.tone}` }),
      ];
    });
  }

  /** @param {number} place */
  middle(place) {
    const { table } = /** @type {Shown} */ (this.shown);
    return this.x?.((table.at[place] ?? 0) + table.step / 2) ?? 0;
  }

  /** The step that is pointed at; the newest one when none is. */
  place() {
    const { at, step } = this.shown?.table ?? { at: [], step: 1 };
    const cursor = this.how.cursor.value;
    if (cursor === null || at.length === 0) return at.length - 1;
    const place = Math.floor((cursor - /** @type {number} */ (at[0])) / step);
    return Math.min(Math.max(place, 0), at.length - 1);
  }

  showCursor() {
    const { table } = this.shown ?? {};
    const place = this.place();
    const at = table?.at[place];
    write(this.when, at === undefined ? "" : this.time.whole(at));
    for (const { series, value } of this.entries) {
      const found = table?.columns[series.key]?.[place] ?? null;
      write(value, found === null ? "–" : this.how.format(found));
    }
    if (this.pointer === undefined) return;
    const isPointed = this.how.cursor.value !== null && at !== undefined && !this.shown?.empty;
    put(this.pointer, isPointed ? svg("path", { d: `M${this.middle(place)} ${TOP}V${HEIGHT - BOTTOM}` }) : null);
  }

  /** @param {PointerEvent} event */
  point(event) {
    if (this.shown === null || this.shown.table.at.length === 0) return;
    const { from, to } = this.shown;
    const x = event.clientX - this.drawing.getBoundingClientRect().left;
    const at = linear(this.start ?? 0, this.width - END, from, to)(x);
    this.how.cursor.set(Math.min(Math.max(at, from), to));
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const { at = [], step = 1 } = this.shown?.table ?? {};
    const place = this.place();
    /** @type {Record<string, number>} */
    const places = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: at.length - 1, PageUp: place - 10, PageDown: place + 10 };
    if (event.ctrlKey || event.metaKey || event.altKey || at.length === 0) return;
    const next = places[event.key];
    if (next !== undefined) {
      this.how.cursor.set(/** @type {number} */ (at[Math.min(Math.max(next, 0), at.length - 1)]) + step / 2);
      write(this.spoken, this.words());
    } else if (event.key === "Escape" && this.how.cursor.value !== null) {
      this.how.cursor.set(null);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  /** What is pointed at, to be read aloud. */
  words() {
    return [this.when.textContent, ...this.entries.map(({ series, value }) => `${series.name} ${value.textContent}`)].join(", ");
  }
}

/** The same numbers to read, made when somebody opens it. */
class ChartTable {
  /** @param {Chart.How} how */
  constructor(how) {
    this.how = how;
    /** @type {Shown | null} */
    this.shown = null;
    /** @type {Map<number, HTMLTableRowElement>} by instant */
    this.rows = new Map();
    this.summary = h("p", { class: "small" });
    this.body = h("tbody");
    const head = h("tr", null, h("th", { scope: "col" }, t("metrics.time")),
      how.series.map((series) => h("th", { scope: "col", class: "number" }, series.name)));
    this.element = h("details", { class: "chart-table", ontoggle: () => this.fill() },
      h("summary", null, t("metrics.table")), this.summary,
      h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": how.title },
        h("table", { class: "table" }, h("thead", null, head), this.body)));
  }

  /** @param {Shown} shown */
  show(shown) {
    this.shown = shown;
    this.fill();
  }

  /** Newest first. O(steps) while it is open; rows that are there stay, so that a selection survives. */
  fill() {
    if (this.shown === null || !this.element.open) return;
    write(this.summary, this.shown.summary);
    const { at, columns } = this.shown.table;
    const known = new Set(at);
    for (const [instant, row] of this.rows) {
      if (known.has(instant)) continue;
      row.remove();
      this.rows.delete(instant);
    }
    at.forEach((instant, place) => {
      const row = this.rows.get(instant) ?? this.row(instant);
      this.how.series.forEach((series, column) => {
        const value = columns[series.key]?.[place] ?? null;
        write(/** @type {Node} */ (row.cells[column + 1]), value === null ? "–" : this.how.format(value));
      });
    });
  }

  /** @param {number} instant */
  row(instant) {
    const row = h("tr", null, h("th", { scope: "row" }, (this.how.time ?? BY_THE_CLOCK).whole(instant)),
      this.how.series.map(() => h("td", { class: "number" })));
    this.rows.set(instant, row);
    this.body.prepend(row);
    return row;
  }
}

/**
 * About as wide as this text is, in pixels: measuring it would cost a layout.
 * @param {string} text
 */
function widthOf(text) {
  return [...text].reduce((sum, letter) => sum + (letter > "ÿ" || letter === "%" ? 11.5 : 7), 0);
}

/**
 * @param {number} x
 * @param {number} last
 */
function edge(x, last) {
  return x > last - 18 ? "end" : "middle";
}
