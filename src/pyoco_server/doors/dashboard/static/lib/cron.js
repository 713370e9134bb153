// Cron expressions as sets of values, as far as words are found for them. The gateway alone decides when they tick.

/**
 * @typedef {object} CronField
 * @property {number[]} values  sorted
 * @property {boolean} all
 * @property {boolean} open     begins with `*`: of two open day fields neither restricts the other
 */
/** @typedef {Record<"second" | "minute" | "hour" | "day" | "month" | "weekday", CronField>} CronFields */

const MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/** @type {Record<string, string>} */
const ALIASES = {
  "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
  "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
};

/**
 * @param {string} expression
 * @returns {CronFields | null} null: it is not understood here
 */
export function readCron(expression) {
  const text = expression.trim().toLowerCase();
  const parts = (ALIASES[text] ?? text).split(/\s+/);
  if (parts.length === 5) parts.unshift("0");
  if (parts.length !== 6) return null;
  const [second = "", minute = "", hour = "", day = "", month = "", weekday = ""] = parts;
  const read = {
    second: field(second, 0, 59), minute: field(minute, 0, 59), hour: field(hour, 0, 23), day: field(day, 1, 31),
    month: field(named(month, MONTHS, 1), 1, 12), weekday: sundayIsZero(field(named(weekday, WEEKDAYS, 0), 0, 7)),
  };
  return Object.values(read).includes(null) ? null : /** @type {CronFields} */ (read);
}

/**
 * @param {string} text
 * @param {string[]} names
 * @param {number} first
 */
function named(text, names, first) {
  return text.replace(/[a-z]{3}/g, (name) => (names.includes(name) ? String(names.indexOf(name) + first) : name))
    .replace(/-0\b/g, first === 0 ? "-7" : "-0"); // Sunday at the end of a range
}

/**
 * @param {string} text
 * @param {number} least
 * @param {number} most
 * @returns {CronField | null}
 */
function field(text, least, most) {
  /** @type {Set<number>} */
  const values = new Set();
  for (const part of text.split(",")) {
    const [, star, from, to, by] = /^(?:(\*)|(\d+)(?:-(\d+))?)(?:\/(\d+))?$/.exec(part) ?? [];
    if (star === undefined && from === undefined) return null;
    const begin = star ? least : Number(from);
    const end = star ? most : Number(to ?? from);
    const step = Number(by ?? 1);
    if (step < 1 || begin < least || end > most || begin > end) return null;
    for (let value = begin; value <= end; value += step) values.add(value);
  }
  return { values: [...values].sort((a, b) => a - b), all: values.size === most - least + 1, open: text.startsWith("*") };
}

/** @param {CronField | null} read */
function sundayIsZero(read) {
  if (read === null) return null;
  const values = [...new Set(read.values.map((value) => value % 7))].sort((a, b) => a - b);
  return { ...read, values, all: values.length === 7 };
}

/**
 * The distance between values that go around evenly: 15 for 0, 15, 30, 45 of 60. null: they do not.
 * @param {number[]} values
 * @param {number} size
 */
export function stepOf(values, size) {
  const [first = 0, second = size] = values;
  const step = second - first;
  const even = values.length > 1 && size % step === 0 && values.length === size / step &&
    values.every((value, at) => value === first + at * step);
  return even ? step : null;
}

/**
 * @param {number[]} values
 * @returns {boolean} one after the other, at least three
 */
export function isRange(values) {
  return values.length > 2 && values.every((value, at) => value === Number(values[0]) + at);
}
