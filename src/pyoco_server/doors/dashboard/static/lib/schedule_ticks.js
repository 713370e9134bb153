// What became of the ticks of a schedule, for the eye: a state for each, and groups of days or months. No page.

import { count, zonedDay, zonedMonth, zonedTime } from "./format.js";
import { sentence, t, wordFor } from "./i18n.js";

/** @typedef {import("./schedule_wire.js").ScheduleTick} ScheduleTick */
/** @typedef {import("./schedule_wire.js").Schedule} Schedule */

/**
 * The status of its run; else what became of it.
 * @param {ScheduleTick} entry
 * @returns {string} as the page has words for it
 */
export function stateOf(entry) {
  if (entry.outcome !== "run") return String(entry.outcome).toUpperCase();
  return entry.run_status ?? "GONE";
}

/** @param {string} state */
export function stateWord(state) {
  const own = wordFor("schedules.state", state);
  return own === state ? wordFor("status", state) : own;
}

/**
 * Why it was not run, in the language of the page.
 * @param {ScheduleTick} entry
 */
export function reasonOf(entry) {
  const words = sentence(entry) || (entry.reason ? wordFor("schedules.reason", entry.reason) : "");
  return entry.err_id ? `${words} (${entry.err_id})` : words;
}

/**
 * When it was to happen; a series has a beginning and an end.
 * @param {ScheduleTick} entry
 * @param {string} zone
 * @param {boolean} [seconds]
 */
export function tickTime(entry, zone, seconds) {
  const at = zonedTime(entry.tick, zone, seconds);
  return typeof entry.last_tick === "number" ? `${at} – ${zonedTime(entry.last_tick, zone, seconds)}` : at;
}

/**
 * Whether one of them is within a minute: then all are told to the second. A trigger always is.
 * @param {{ tick: number, source?: string }[]} entries
 */
export function haveSeconds(entries) {
  return entries.some((entry) => entry.tick % 60 !== 0 && entry.source !== "trigger");
}

/**
 * The whole entry in a line.
 * @param {ScheduleTick} entry
 * @param {string} zone
 */
export function tickWords(entry, zone) {
  return [
    tickTime(entry, zone), stateWord(stateOf(entry)),
    entry.source === "tick" ? "" : wordFor("schedules.source", String(entry.source)),
    entry.count ? t("schedules.series", { n: count(entry.count) }) : "",
    reasonOf(entry),
  ].filter(Boolean).join(" · ");
}

/**
 * The same for the same tick at each look. Several triggers may fall into one second.
 * @param {ScheduleTick} entry
 */
export function keyOf(entry) {
  return `${entry.tick} ${entry.source === "trigger" ? entry.run_id : entry.source}`;
}

/**
 * In the order of their times, by day; or by month, when hardly two are of one day.
 * @param {ScheduleTick[]} entries
 * @param {string} zone
 * @returns {{ label: string, entries: ScheduleTick[] }[]}
 */
export function groupsOf(entries, zone) {
  const sorted = [...entries].sort((a, b) => a.tick - b.tick || (keyOf(a) < keyOf(b) ? -1 : 1));
  const days = new Set(sorted.map((entry) => zonedDay(entry.tick, zone)));
  const label = 2 * days.size > sorted.length + 1 ? zonedMonth : zonedDay;
  /** @type {Map<string, ScheduleTick[]>} */
  const groups = new Map();
  for (const entry of sorted) {
    const name = label(entry.tick, zone);
    groups.set(name, [...(groups.get(name) ?? []), entry]);
  }
  return [...groups].map(([name, found]) => ({ label: name, entries: found }));
}

/**
 * The first tick that is still to come; what was told may be some seconds old.
 * @param {Schedule} schedule
 * @param {number} now
 * @returns {number | null}
 */
export function nextTick(schedule, now) {
  const ticks = Array.isArray(schedule.next_ticks) ? schedule.next_ticks : [];
  return ticks.find((tick) => tick > now) ?? ticks.at(-1) ?? null;
}
