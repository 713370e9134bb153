// Numbers, spans and instants as people read them, in the language of the page.

import { language, t } from "./i18n.js";

/** @param {number} value */
export function count(value) {
  return new Intl.NumberFormat(language()).format(value);
}

/**
 * A share of 1. What is not quite nothing does not look like it.
 * @param {number} value
 */
export function percent(value) {
  const digits = value > 0 && value < 0.0995 ? 1 : 0;
  return new Intl.NumberFormat(language(), { style: "percent", maximumFractionDigits: digits }).format(value);
}

/**
 * 250 µs, 0.4 s, 12 s, 3 m 05 s, 2 h 10 m, 3 d 4 h. Two units at most.
 * @param {number} seconds
 */
export function span(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, seconds);
  if (whole > 0 && whole < 0.0009995) return t("span.us", { n: Math.max(1, Math.round(whole * 1e6)) });
  if (whole < 0.0995) return t("span.ms", { n: Math.round(whole * 1000) });
  if (whole < 9.95 && !Number.isInteger(whole)) return t("span.s", { n: whole.toFixed(1) });
  const s = Math.round(whole);
  if (s < 60) return t("span.s", { n: s });
  if (s < 3600) return t("span.m_s", { m: Math.floor(s / 60), s: String(s % 60).padStart(2, "0") });
  const m = Math.floor(s / 60);
  if (m < 24 * 60) return t("span.h_m", { h: Math.floor(m / 60), m: String(m % 60).padStart(2, "0") });
  const hours = Math.floor(m / 60);
  return t("span.d_h", { d: Math.floor(hours / 24), h: hours % 24 });
}

/**
 * The label of a mark on an axis of time: as precise as the distance between two marks, in the same unit for all of them,
 * so that no two are alike.
 * @param {number} at seconds, not negative
 * @param {number} step seconds between two marks
 * @param {number} largest of all marks
 */
export function markText(at, step, largest) {
  if (step >= 1) return span(at);
  if (largest >= 1) return t("span.s", { n: at.toFixed(decimals(step)) });
  if (step >= 0.001) return t("span.ms", { n: Math.round(at * 1000) });
  if (largest >= 0.01) return t("span.ms", { n: (at * 1000).toFixed(decimals(step * 1000)) });
  return t("span.us", { n: Math.round(at * 1e6) });
}

/** @param {number} step below one */
function decimals(step) {
  return Math.min(6, Math.ceil(-Math.log10(step) - 1e-9));
}

/**
 * How long ago: whole seconds, so that it does not flicker.
 * @param {number} seconds
 */
export function ago(seconds) {
  return seconds < 1 ? t("span.now") : t("span.ago", { span: span(Math.max(1, Math.floor(seconds))) });
}

/**
 * How long until then. What is due this moment is not late yet: the page may be some seconds behind.
 * @param {number} seconds
 */
export function ahead(seconds) {
  if (seconds > 0) return t("span.in", { span: span(Math.ceil(seconds)) });
  return seconds > -DUE_SECONDS ? t("span.due") : ago(-seconds);
}

const DUE_SECONDS = 60;

/** @type {Map<string, Intl.DateTimeFormat>} making one costs more than using it a hundred times */
const clocks = new Map();

/**
 * @param {string} name
 * @param {Intl.DateTimeFormatOptions} options
 * @param {number} at
 */
function clock(name, options, at) {
  const key = `${language()} ${name}`;
  const made = clocks.get(key) ?? new Intl.DateTimeFormat(language(), options);
  clocks.set(key, made);
  const stamp = at * 1000;
  return Math.abs(stamp) <= 8.64e15 ? made.format(stamp) : "–"; // beyond it there are no dates, and `format` throws
}

/** @param {number} at */
export function dateTime(at) {
  return clock("date", { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" }, at);
}

/** @param {number} at */
export function timeOfDay(at) {
  return clock("time", { timeStyle: "medium", hourCycle: "h23" }, at);
}

/**
 * With milliseconds, for what happens within a second.
 * @param {number} at
 */
export function preciseTime(at) {
  return clock("precise", { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hourCycle: "h23" }, at);
}

/**
 * Hours and minutes, for an axis.
 * @param {number} at
 */
export function clockTime(at) {
  return clock("minute", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }, at);
}

/**
 * Month and day, for an axis.
 * @param {number} at
 */
export function dayOfMonth(at) {
  return clock("day", { month: "short", day: "numeric" }, at);
}

/**
 * To the minute, with the day.
 * @param {number} at
 */
export function dayAndTime(at) {
  return clock("day_time", { dateStyle: "medium", timeStyle: "short", hourCycle: "h23" }, at);
}

/**
 * In a zone that need not be the reader's. One that the browser does not know: in UTC, and says so.
 * @param {string} name
 * @param {Intl.DateTimeFormatOptions} options
 * @param {number} at
 * @param {string} zone
 */
function zoned(name, options, at, zone) {
  const known = isZone(zone);
  const text = clock(`${name} ${zone}`, { ...options, timeZone: known ? zone : "UTC" }, at);
  return known ? text : `${text} UTC`;
}

/** @type {Map<string, boolean>} */
const zones = new Map();

/** @param {string} zone */
function isZone(zone) {
  const known = zones.get(zone) ?? makesClock(zone);
  zones.set(zone, known);
  return known;
}

/** @param {string} zone */
function makesClock(zone) {
  try {
    new Intl.DateTimeFormat("en", { timeZone: zone });
    return true;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return false;
  }
}

/** @type {Intl.DateTimeFormatOptions} */
const WALL = { weekday: "short", year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };

/**
 * A wall time of a zone, with its weekday; seconds only when there are some.
 * @param {number} at
 * @param {string} zone
 * @param {boolean} [seconds] as those beside it have some
 */
export function zonedTime(at, zone, seconds = at % 60 !== 0) {
  return seconds ? zoned("wall_s", { ...WALL, second: "2-digit" }, at, zone) : zoned("wall", WALL, at, zone);
}

/**
 * @param {number} at
 * @param {string} zone
 */
export function zonedDay(at, zone) {
  return zoned("zoned_day", { weekday: "short", month: "short", day: "numeric" }, at, zone);
}

/**
 * @param {number} at
 * @param {string} zone
 */
export function zonedMonth(at, zone) {
  return zoned("zoned_month", { year: "numeric", month: "short" }, at, zone);
}

/** @param {number} size */
export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = size;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : 1;
  return `${new Intl.NumberFormat(language(), { maximumFractionDigits: digits }).format(value)} ${units[unit]}`;
}

/**
 * The first part of an id, enough to tell it from its neighbours.
 * @param {string} id
 */
export function shortId(id) {
  return id.slice(0, 8);
}
