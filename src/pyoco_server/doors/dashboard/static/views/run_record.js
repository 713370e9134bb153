// All that is known of one task: in the list, and beside the graph for the one that is looked at.

import { h, put, write } from "../lib/dom.js";
import { bytes, dateTime, preciseTime, span } from "../lib/format.js";
import { chartOf } from "../lib/gantt.js";
import { t } from "../lib/i18n.js";
import { jumpToLog } from "../lib/log_filter.js";
import { badge, button, card, facts, iconButton, lasting, longText, refill } from "../lib/parts.js";
import { isObject, jsonText, recordOf } from "../lib/run_facts.js";
import { notKept } from "./run_result.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/gantt.js").Bar} Bar */
/** @typedef {import("./run_kinds.js").RunPage} RunPage */

/** The task that was chosen in the graph, the timeline or the address. */
export class RecordSection {
  /** @param {RunPage} page */
  constructor(page) {
    this.page = page;
    /** @type {Run | null} */
    this.run = null;
    this.body = h("div", { class: "run-task-body" });
    this.element = card(t("run.task.name"), {
      class: "run-record", actions: iconButton("close", t("close"), () => page.selected.set(null)),
    }, this.body);
    this.title = h("span", { "aria-live": "polite" }); // no role: the heading stays one, and keeps its name
    put(/** @type {HTMLElement} */ (this.element.querySelector("h2")), this.title);
    this.element.hidden = true;
    this.unfollow = page.selected.follow(() => this.draw());
  }

  close() {
    this.unfollow();
  }

  /** @param {Run} run */
  show(run) {
    this.run = run;
    this.draw();
  }

  draw() {
    const name = this.page.selected.value;
    const bar = this.run === null || name === null ? undefined : chartOf(this.run).tasks.find((each) => each.name === name);
    this.element.hidden = bar === undefined;
    if (this.run === null || bar === undefined) return;
    write(this.title, bar.name);
    fillRecord(this.body, this.run, bar, this.page);
  }
}

/**
 * Fills a region, again only if something differs.
 * @param {HTMLElement} region
 * @param {Run} run
 * @param {Bar} bar
 * @param {RunPage} page
 */
export function fillRecord(region, run, bar, page) {
  const record = recordOf(run, bar.name);
  const graph = isObject(run.graph) && Object.hasOwn(run.graph, bar.name) ? run.graph[bar.name] : null;
  refill(region, [bar, record, graph], () => [
    facts([
      [t("run.task.state"), badge(bar.state)],
      [t("run.task.took"), bar.from === null ? null : tookOf(bar)],
      [t("run.task.started"), momentOf(bar.from)],
      [t("run.task.ended"), bar.from === null ? null : momentOf(bar.to)],
    ]),
    Array.isArray(graph) && graph.length > 0 ? part(t("run.task.waits_for"), links(graph, page.selected)) : null,
    bar.from === null ? null : h("div", null, button(t("logs.of_task"), () => jumpToLog(page, { task: bar.name }))),
    ...recordParts(record),
  ]);
}

/** @param {number | null} at */
function momentOf(at) {
  return at === null ? null : h("span", { title: dateTime(at) }, preciseTime(at));
}

/**
 * @param {string[]} names
 * @param {RunPage["selected"]} selected
 */
function links(names, selected) {
  return h("div", { class: "chips" }, names.slice(0, 100).map((name) => h("button", {
    type: "button", class: "chip", onclick: () => selected.set(name), title: name,
  }, h("span", { class: "one-line" }, String(name)))));
}

/** @param {Bar} bar */
export function tookOf(bar) {
  if (bar.from === null) return bar.seconds === null ? "" : span(bar.seconds);
  return bar.to === null ? lasting(bar.from, null) : span(bar.seconds ?? bar.to - bar.from);
}

/**
 * @param {import("../lib/wire.js").TaskRecord | null} record
 * @returns {(HTMLElement | null)[]}
 */
function recordParts(record) {
  if (record === null) return [h("p", { class: "dim" }, t("run.task.no_record"))];
  const parts = [
    textPart(t("run.error"), record.error), textPart(t("run.traceback"), record.traceback),
    valuePart(t("run.task.inputs"), record.inputs), valuePart(t("run.task.output"), record.output), cutPart(record),
    valuePart(t("run.task.artifacts"), record.artifacts),
  ];
  return parts.some((part) => part !== null) ? parts : [h("p", { class: "dim" }, t("run.task.no_record"))];
}

/**
 * @param {string} title
 * @param {unknown} value
 */
function textPart(title, value) {
  return typeof value === "string" && value !== "" ? part(title, longText(value)) : null;
}

/**
 * Says loudly that the output is not whole, where it would be.
 * @param {import("../lib/wire.js").TaskRecord} record
 */
function cutPart(record) {
  if (isObject(record.output_error)) return notKept(record.output_error);
  if (record.output_truncated !== true) return null;
  const { bytes: size, content_type: type } = record.output_ref ?? {};
  return h("p", { class: "mark" }, t("run.result.cut", { size: bytes(size ?? 0), type: type ?? "" }));
}

/**
 * @param {string} title
 * @param {unknown} value
 */
function valuePart(title, value) {
  const isEmpty = value === null || value === undefined || (isObject(value) && Object.keys(value).length === 0);
  return isEmpty ? null : part(title, longText(jsonText(value)));
}

/**
 * @param {string} title
 * @param {HTMLElement} body
 */
function part(title, body) {
  return h("div", { class: "run-part" }, h("h3", null, title), body);
}
