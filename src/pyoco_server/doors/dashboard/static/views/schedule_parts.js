// What the list of schedules, the page of one and the page of a run share.

import { now } from "../lib/clock.js";
import { h } from "../lib/dom.js";
import { count, zonedTime } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { statusIcon, until } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { nextTick, stateOf, stateWord } from "../lib/schedule_ticks.js";
import { whatName, whenText, whenWords } from "../lib/schedule_words.js";

/** @typedef {import("../lib/schedule_wire.js").Schedule} Schedule */
/** @typedef {import("../lib/schedule_wire.js").ScheduleTick} ScheduleTick */
/** @typedef {import("../lib/dom.js").Leaf} Leaf */

/** @type {Record<string, import("../lib/icons.js").Icon>} */
const ICONS = { WAITING: "pending", SKIPPED: "skip", REFUSED: "danger", GONE: "gone" };

/** @param {string} name */
export function pathOf(name) {
  return `schedules/${encodeURIComponent(name)}`;
}

/** @param {string} state */
export function stateIcon(state) {
  const own = Object.hasOwn(ICONS, state) ? ICONS[state] : undefined;
  return own === undefined ? statusIcon(state) : icon(own);
}

/**
 * What became of a tick, as a badge; it leads to the run when there is one.
 * @param {ScheduleTick} entry
 * @param {string} [title]
 */
export function outcomeBadge(entry, title) {
  const state = stateOf(entry);
  const inside = [stateIcon(state), stateWord(state)];
  const style = `badge status-${state.toLowerCase()}`;
  return entry.run_id ? h("a", { class: `${style} schedule-outcome`, href: href("runs", [entry.run_id]), title }, inside)
    : h("span", { class: style, title }, inside);
}

/**
 * Paused, overdue, ticks that wait.
 * @param {Schedule} schedule
 * @returns {Leaf[]}
 */
export function marksOf(schedule) {
  return [
    schedule.paused ? h("span", { class: "badge", title: schedule.pause_reason ?? t("schedules.paused.why") }, icon("pause"), t("schedules.paused")) : null,
    schedule.overdue ? h("span", { class: "badge status-stale", title: t("schedules.overdue.why") }, icon("warning"), t("schedules.overdue")) : null,
    schedule.waiting_ticks > 0 ? h("span", { class: "badge status-pending", title: t("schedules.waiting.title") }, icon("pending"),
      t("schedules.waiting", { n: count(schedule.waiting_ticks) })) : null,
  ];
}

/**
 * The words, the expression and the zone.
 * @param {Schedule} schedule
 * @returns {Leaf[]}
 */
export function whenParts(schedule) {
  const [words, text] = [whenWords(schedule.when), whenText(schedule.when)];
  return [
    words ? h("span", null, words) : null,
    h("span", { class: "small dim schedule-when" }, text && h("code", null, text), h("span", null, schedule.timezone)),
  ];
}

/**
 * The next tick, from now and in the zone of the schedule.
 * @param {Schedule} schedule
 * @returns {[made: unknown, make: () => Leaf[]]} as `refill` takes it
 */
export function nextParts(schedule) {
  const tick = schedule.paused ? null : nextTick(schedule, now());
  return [[tick, schedule.timezone, schedule.paused], () => {
    if (tick === null) return [h("span", { class: "dim" }, schedule.paused ? "–" : t("schedules.over"))];
    const at = zonedTime(tick, schedule.timezone);
    return [until(tick, at), h("span", { class: "small dim" }, at)];
  }];
}

/**
 * @param {Schedule} schedule
 * @returns {Leaf[]}
 */
export function whatParts(schedule) {
  const { kind, flow_name: flow, exec_name: exec } = schedule.what;
  const name = whatName(schedule.what);
  const runs = href("runs", [], flow ? { flow: String(flow) } : exec ? { kind: "exec", exec: String(exec) } : { kind: "pack" });
  return [h("a", { class: "queue-tag", href: runs }, name),
    h("span", { class: "runs-kind" }, wordFor("schedules.kind", String(kind)))];
}

/** The runs of a schedule carry its label. @param {string} name */
export function runsOf(name) {
  return href("runs", [], { tag: `schedule:${name}` });
}

/**
 * @param {string[]} labels
 * @returns {HTMLElement[]}
 */
export function labelLinks(labels) {
  return labels.map((label) => h("a", {
    class: "tag-note tag-link", href: href("schedules", [], { label }), title: t("schedules.filter.label.title", { label }),
  }, label));
}
