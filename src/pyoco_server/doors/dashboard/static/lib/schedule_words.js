// When a schedule ticks, in words. What has no short words is told by its expression alone.

import { isRange, readCron, stepOf } from "./cron.js";
import { whole } from "./fleet.js";
import { count } from "./format.js";
import { language, t } from "./i18n.js";

/** @typedef {import("./schedule_wire.js").Schedule} Schedule */
/** @typedef {import("./cron.js").CronFields} CronFields */

const TIMES_MAX = 6;
/** A Sunday, and the first day of a year. */
const SUNDAY = Date.UTC(2023, 0, 1);
const UNITS = /** @type {const} */ ([["d", 86_400], ["h", 3600], ["m", 60], ["s", 1]]);

/**
 * @param {Schedule["when"]} when
 * @returns {string} empty: there are none
 */
export function whenWords(when) {
  if (typeof when.every === "number") return capital(everyWords(when.every, whole(when.offset)));
  if (Array.isArray(when.at)) return capital(t("schedules.when.at", { n: count(when.at.length) }));
  const cron = String(when.cron ?? "");
  const interval = /^@every\s+(.+)$/i.exec(cron)?.[1];
  if (interval !== undefined) return capital(t("schedules.when.every", { span: interval }));
  const fields = readCron(cron);
  return fields === null ? "" : capital(cronWords(fields));
}

/**
 * As it was written, for a `code`.
 * @param {Schedule["when"]} when
 */
export function whenText(when) {
  if (typeof when.every === "number") return `every ${when.every}s${when.offset ? ` + ${when.offset}s` : ""}`;
  return Array.isArray(when.at) ? "" : String(when.cron ?? "");
}

/**
 * What is submitted: the name of the flow, the program or the pack.
 * @param {Schedule["what"]} what
 */
export function whatName(what) {
  return String(what.flow_name ?? what.exec_name ?? what.pack_type ?? "");
}

/** @param {number} seconds */
function exactly(seconds) {
  return UNITS.find(([, each]) => seconds % each === 0) ?? UNITS[3];
}

/**
 * A round length of time in one unit.
 * @param {number} seconds
 */
export function lengthWords(seconds) {
  const [unit, size] = exactly(seconds);
  return t(`schedules.length.${unit}`, { n: count(seconds / size) });
}

/**
 * @param {number} seconds
 * @param {number} offset
 */
function everyWords(seconds, offset) {
  const [unit, size] = exactly(seconds);
  const words = t(`schedules.when.every.${unit}`, { n: count(seconds / size) });
  return offset === 0 ? words : t("schedules.when.offset", { words, span: lengthWords(offset) });
}

/** @param {CronFields} fields */
function cronWords(fields) {
  const time = timeWords(fields);
  const days = dayWords(fields);
  if (time === null || days === null) return "";
  const { values, all } = fields.month;
  const words = time.often ? (days === "" ? time.words : t("schedules.cron.often", { days, time: time.words }))
    : t("schedules.cron.once", { days: days || t("schedules.cron.daily"), time: time.words });
  return all ? words : t("schedules.cron.months", { words, months: list(values.map(monthName)) });
}

/**
 * @param {CronFields} fields
 * @returns {{ words: string, often: boolean } | null} often: more than a few times a day
 */
function timeWords({ second, minute, hour }) {
  const often = (/** @type {string} */ words) => ({ words, often: true });
  if (second.values.length > 1) {
    const step = stepOf(second.values, 60);
    return step !== null && minute.all && hour.all ? often(everyWords(step, 0)) : null;
  }
  const s = Number(second.values[0]);
  const at = (/** @type {number} */ h, /** @type {number} */ m) => `${two(h)}:${two(m)}${s === 0 ? "" : `:${two(s)}`}`;
  const [h = 0, m = 0] = [hour.values[0], minute.values[0]];
  const lastHour = hour.values.at(-1) ?? h;
  const lastMinute = minute.values.at(-1) ?? m;
  const step = stepOf(minute.values, 60);
  if (step !== null && m === 0 && s === 0) {
    const words = everyWords(step * 60, 0);
    if (hour.all) return often(words);
    const range = hour.values.length === 1 || hour.values.every((value, place) => value === h + place);
    return range ? often(t("schedules.cron.between", { words, from: at(h, m), to: at(lastHour, lastMinute) })) : null;
  }
  if (hour.all && minute.values.length <= TIMES_MAX) {
    return often(t("schedules.cron.hourly", { minutes: list(minute.values.map((each) => `:${two(each)}`)) }));
  }
  const times = hour.values.flatMap((each) => minute.values.map((value) => at(each, value)));
  if (times.length <= TIMES_MAX) return { words: t("schedules.cron.at", { times: list(times) }), often: false };
  if (minute.values.length > 1) return null;
  const hours = stepOf(hour.values, 24);
  if (hours !== null) return often(t("schedules.cron.hours", { n: hours, minute: `:${two(m)}`, from: at(h, m) }));
  const hourly = t("schedules.cron.hourly", { minutes: `:${two(m)}` });
  return isRange(hour.values) ? often(t("schedules.cron.between", { words: hourly, from: at(h, m), to: at(lastHour, m) })) : null;
}

/**
 * @param {CronFields} fields
 * @returns {string | null} empty: every day; null: no words
 */
function dayWords({ day, month, weekday }) {
  const key = month.all ? "schedules.cron.day" : "schedules.cron.day_of";
  const days = day.all ? "" : day.values.length <= TIMES_MAX ? t(key, { days: list(day.values.map(String)) }) : null;
  const weekdays = weekday.all ? "" : weekdayWords(weekday.values);
  if (days === null) return null;
  if (day.open || weekday.open) return (day.open && !day.all) || (weekday.open && !weekday.all) ? null : days || weekdays;
  return days === "" || weekdays === "" ? "" : t("schedules.cron.either", { days, weekdays }); // either of them is enough
}

/** @param {number[]} values */
function weekdayWords(values) {
  const fromMonday = values.map((value) => (value + 6) % 7).sort((a, b) => a - b).map((value) => (value + 1) % 7);
  const order = fromMonday.map((value) => (value + 6) % 7);
  const name = (/** @type {number} */ value) => dayName(value);
  if (values.length === 1) return t("schedules.cron.weekday", { day: name(Number(values[0])) });
  if (!isRange(order)) return t("schedules.cron.weekdays", { days: list(fromMonday.map(name)) });
  return t("schedules.cron.range", { from: name(Number(fromMonday[0])), to: name(Number(fromMonday.at(-1))) });
}

/** @param {number} value Sunday is 0 */
function dayName(value) {
  return new Intl.DateTimeFormat(language(), { weekday: "long", timeZone: "UTC" }).format(SUNDAY + value * 86_400_000);
}

/** @param {number} value from 1 */
function monthName(value) {
  return new Intl.DateTimeFormat(language(), { month: "long", timeZone: "UTC" }).format(Date.UTC(2023, value - 1, 1));
}

/** @param {string[]} words */
function list(words) {
  return new Intl.ListFormat(language(), { type: "conjunction" }).format(words);
}

/** @param {number} value */
function two(value) {
  return String(value).padStart(2, "0");
}

/** @param {string} text */
function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
