// The last hour in charts, from the gateway's memory.

import { Refused, get } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { h, put, write } from "../lib/dom.js";
import { Signal } from "../lib/events.js";
import { busySlots } from "../lib/fleet.js";
import { count, percent, span, timeOfDay } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { card, commandBox, nothing, skeleton } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { Recent, share } from "../lib/recent.js";
import { countTicks, largest, shareTicks, spanTicks } from "../lib/scale.js";
import { settings } from "../lib/settings.js";

/** @typedef {import("../lib/scale.js").Value} Value */
/** @typedef {import("../lib/chart.js").Shown} Shown */

/** A step of the gateway's memory: there is nothing new any sooner. Each answer has only the new ones. */
const POLL_SECONDS = 10;
/** Workers come and go slowly, and a large fleet is a long answer. */
const WORKERS_POLL_SECONDS = 30;
/** A gateway that was just started does not show three bars as wide as the screen. */
const AXIS_SECONDS_MIN = 600;
const GONE = new Set(["DISCONNECTED", "STOPPED_GRACEFUL"]);

/**
 * @param {import("../lib/router.js").Place} _place
 * @returns {import("../panels.js").View}
 */
export function openMetrics(_place) {
  const view = new Metrics();
  return { element: view.element, close: () => view.close() };
}

class Metrics {
  constructor() {
    this.recent = new Recent();
    /** @type {Signal<number | null>} */
    const cursor = new Signal(/** @type {number | null} */ (null));
    this.charts = makeCharts(cursor);
    this.figures = new Figures();
    this.memory = h("p", { class: "dim small" });
    this.grid = h("div", { class: "charts" }, skeleton(6));
    this.isDrawn = false;
    this.element = h("div", { class: "view metrics" },
      h("div", { class: "view-head" }, h("h1", null, t("metrics.title")), this.memory),
      this.figures.element, this.grid, forPrometheus());
    this.polls = [
      poll(POLL_SECONDS, (signal) => this.ask(signal)),
      poll(WORKERS_POLL_SECONDS, async (signal) => this.figures.showWorkers(await get("workers", {}, signal))),
    ];
  }

  close() {
    for (const each of this.polls) each.stop();
    for (const chart of Object.values(this.charts)) chart.close();
  }

  /** @param {AbortSignal} signal */
  async ask(signal) {
    try {
      const answer = await get("metrics/recent", { after: this.recent.after }, signal);
      if (!this.recent.add(answer)) this.recent.add(await get("metrics/recent", {}, signal));
    } catch (error) {
      if (error instanceof Refused && error.status === 404) put(this.grid, nothing(t("metrics.missing")));
      throw error;
    }
    this.show();
  }

  show() {
    if (!this.isDrawn) put(this.grid, ...Object.values(this.charts).map((chart) => chart.element));
    this.isDrawn = true;
    const { recent } = this;
    const isYoung = recent.length === 0;
    const since = timeOfDay(recent.begin);
    write(this.memory, isYoung ? t("metrics.young") : recent.isFull ? t("metrics.hour") : t("metrics.since", { at: since }));
    this.figures.show(recent);
    const axis = { from: Math.min(recent.begin, recent.end - AXIS_SECONDS_MIN), to: recent.end };
    const minutes = recent.minutes();
    // Minutes of the clock reach beyond both ends of what is known.
    const minuteAxis = { from: Math.min(axis.from, minutes.at[0] ?? axis.from), to: (minutes.at.at(-1) ?? axis.to) + minutes.step };
    this.charts.throughput.show({ ...minuteAxis, table: minutes, ...throughput(recent, since) });
    this.charts.share.show({ ...minuteAxis, table: minutes, ...failures(recent, minutes.columns, since) });
    this.charts.wait.show({ ...axis, table: recent.steps(), ...spans(recent, "wait", since) });
    this.charts.run.show({ ...axis, table: recent.steps(), ...spans(recent, "run", since) });
    this.charts.load.show({ ...axis, table: recent.steps(), ...load(recent, since) });
  }
}

/** @param {Signal<number | null>} cursor */
function makeCharts(cursor) {
  /** @param {"wait" | "run"} name @param {"wait" | "run"} tone */
  const spanChart = (name, tone) => new Chart({
    title: t(`metrics.${name}`), cursor, format: exactSpan, ticks: spanTicks,
    series: [
      { key: `${name}_p50`, name: t("metrics.p50"), tone, as: "solid" },
      { key: `${name}_p95`, name: t("metrics.p95"), tone, as: "dashed" },
      { key: `${name}_p99`, name: t("metrics.p99"), tone: "off", as: "dotted" },
    ],
  });
  return {
    throughput: new Chart({
      title: t("metrics.throughput"), cursor, format: count, ticks: countTicks, class: "wide",
      series: [
        { key: "completed", name: t("metrics.completed"), tone: "ok", as: "bar" },
        { key: "failed", name: t("metrics.failed"), tone: "bad", as: "bar", hatched: true },
        { key: "cancelled", name: t("metrics.cancelled"), tone: "off", as: "bar" },
        { key: "submitted", name: t("metrics.submitted"), tone: "accent", as: "dashed" },
      ],
    }),
    wait: spanChart("wait", "wait"),
    run: spanChart("run", "run"),
    share: new Chart({
      title: t("metrics.share"), cursor, format: percent, ticks: shareTicks,
      series: [{ key: "share", name: t("metrics.failed"), tone: "bad", as: "solid" }],
    }),
    load: new Chart({
      title: t("metrics.load"), cursor, format: count, ticks: countTicks,
      series: [
        { key: "in_flight", name: t("metrics.in_flight"), tone: "run", as: "solid" },
        { key: "waiting", name: t("metrics.waiting"), tone: "wait", as: "dashed" },
      ],
    }),
  };
}

/** @typedef {Pick<Shown, "now" | "range" | "summary" | "empty">} Words */

/**
 * @param {Recent} recent
 * @param {string} at
 * @returns {Words}
 */
function throughput(recent, at) {
  const ended = recent.sum("completed") + recent.sum("failed") + recent.sum("cancelled");
  const told = Object.fromEntries(["submitted", "completed", "failed", "cancelled"].map((name) =>
    [name, count(recent.sum(/** @type {"submitted"} */ (name)))]));
  const columns = recent.minutes().columns;
  const totals = columns.submitted?.map((_, place) =>
    (columns.completed?.[place] ?? 0) + (columns.failed?.[place] ?? 0) + (columns.cancelled?.[place] ?? 0)) ?? [];
  const now = count(totals.at(-1) ?? 0); // of the chart's own last minute: number, range and bars say the same
  return {
    now: t("metrics.per_minute", { n: now }),
    range: rangeOf([totals], count),
    summary: t("metrics.say.throughput", { at, now, ...told }),
    ...(ended + recent.sum("submitted") === 0 ? { empty: t("metrics.none_heard", { at }) } : {}),
  };
}

/**
 * @param {Recent} recent
 * @param {Record<string, Value[]>} minutes
 * @param {string} at
 * @returns {Words}
 */
function failures(recent, minutes, at) {
  const [failed, completed] = [recent.sum("failed"), recent.sum("completed")];
  const all = share(failed, completed);
  if (all === null) return { now: "", range: "", summary: t("metrics.none_ended", { at }), empty: t("metrics.none_ended", { at }) };
  const shares = minutes.share ?? [];
  const lately = (/** @type {Value[]} */ column = []) => column.slice(-5).reduce((/** @type {number} */ sum, value) => sum + (value ?? 0), 0);
  const now = share(lately(minutes.failed), lately(minutes.completed)) ?? shares.findLast((each) => each !== null) ?? all;
  return {
    now: percent(now),
    range: rangeOf([shares], percent),
    summary: t("metrics.say.share", { at, failed: count(failed), ended: count(failed + completed), share: percent(all) }),
  };
}

/**
 * @param {Recent} recent
 * @param {"wait" | "run"} name
 * @param {string} at
 * @returns {Words}
 */
function spans(recent, name, at) {
  const [p50, p95] = [recent.latest(`${name}_p50`), recent.latest(`${name}_p95`)];
  if (p50 === null || p95 === null) {
    return { now: "", range: "", summary: t("metrics.none_ended", { at }), empty: t("metrics.none_ended", { at }) };
  }
  const high = largest([recent.columns[`${name}_p99`]]);
  return {
    now: exactSpan(p50),
    range: rangeOf([recent.columns[`${name}_p50`], recent.columns[`${name}_p99`]], exactSpan),
    summary: t("metrics.say.spans", { at, p50: exactSpan(p50), p95: exactSpan(p95), high: exactSpan(high) }),
  };
}

/**
 * @param {Recent} recent
 * @param {string} at
 * @returns {Words}
 */
function load(recent, at) {
  const [inFlight, waiting] = [recent.latest("in_flight"), recent.latest("waiting")];
  if (inFlight === null || waiting === null) {
    return { now: "", range: "", summary: t("metrics.none_looked", { at }), empty: t("metrics.none_looked", { at }) };
  }
  const high = largest([recent.columns.in_flight, recent.columns.waiting]);
  return {
    now: t("metrics.now.load", { waiting: count(waiting) }),
    range: rangeOf([recent.columns.in_flight, recent.columns.waiting], count),
    summary: t("metrics.say.load", { at, in_flight: count(inFlight), waiting: count(waiting), high: count(high) }),
  };
}

/**
 * @param {Value[][]} columns
 * @param {(value: number) => string} format
 */
function rangeOf(columns, format) {
  let low = Infinity;
  for (const column of columns) {
    for (const value of column) if (value !== null && value < low) low = value;
  }
  return low === Infinity ? t("metrics.no_value") : t("metrics.range", { low: format(low), high: format(largest(columns)) });
}

/**
 * In a chart 0.15 s and 0.2 s must not read the same, nor 94 ms and 0.1 s side by side.
 * @param {number} seconds
 */
function exactSpan(seconds) {
  if (seconds === 0) return "0";
  return seconds < 1 ? t("span.ms", { n: seconds < 0.0095 ? Number((seconds * 1000).toFixed(1)) : Math.round(seconds * 1000) }) : span(seconds);
}

/** The few numbers on top. */
class Figures {
  constructor() {
    /** @type {Record<string, { value: HTMLElement, note: HTMLElement }>} */
    this.lines = {};
    const names = /** @type {const} */ (["in_flight", "waiting", "workers", "slots", "completed", "failed"]);
    this.element = h("dl", { class: "figures" }, names.map((name) => {
      const line = { value: h("dd", { class: "number" }, "–"), note: h("dd", { class: "dim small" }) };
      this.lines[name] = line;
      return h("div", { class: `figure figure-${name}` }, h("dt", null, t(`metrics.${name}`)), line.value, line.note);
    }));
  }

  /**
   * @param {string} name
   * @param {string} value
   * @param {string} [note]
   */
  write(name, value, note = "") {
    const line = this.lines[name];
    if (line === undefined) return;
    write(line.value, value);
    write(line.note, note);
  }

  /** @param {Recent} recent */
  show(recent) {
    if (recent.length === 0) return;
    const [inFlight, waiting] = [recent.latest("in_flight"), recent.latest("waiting")];
    const [failed, completed] = [recent.sum("failed"), recent.sum("completed")];
    const part = share(failed, completed);
    const during = t("metrics.in_span", { span: span(recent.length * recent.step) });
    this.write("in_flight", inFlight === null ? "–" : count(inFlight));
    this.write("waiting", waiting === null ? "–" : count(waiting));
    this.write("completed", count(completed), during);
    this.write("failed", count(failed), part === null ? during : `${percent(part)} · ${during}`);
  }

  /** @param {unknown} answer */
  showWorkers(answer) {
    /** @type {import("../lib/wire.js").Worker[]} */
    const workers = Array.isArray(answer) ? answer : /** @type {any} */ (answer)?.items ?? [];
    const alive = workers.filter((worker) => !GONE.has(worker.state));
    const slots = alive.reduce((sum, worker) => sum + (Number(worker.slots) || 0), 0);
    const busy = alive.reduce((sum, worker) => sum + busySlots(worker), 0);
    this.write("workers", count(alive.length));
    this.write("slots", t("metrics.of", { n: count(busy), all: count(slots) }), slots > 0 ? percent(busy / slots) : "");
  }
}

function forPrometheus() {
  const address = new URL("metrics", location.href.replace(/#.*$/s, "")).href;
  const key = settings.asksForKey ? ` -H "${settings.keyHeader}: $PYOCO_API_KEY"` : "";
  // A link cannot carry the key.
  const link = settings.asksForKey ? null : h("a", { class: "button", href: "metrics", target: "_blank", rel: "noopener" }, t("metrics.prometheus_open"));
  return card(t("metrics.prometheus"), { actions: link }, h("p", { class: "dim" }, t("metrics.prometheus_note")),
    commandBox(`curl${key} ${address}`), commandBox("pyoco-client metrics"));
}
