// The last hour as the gateway remembers it, kept up to date piece by piece. No page here.

/** @typedef {import("./scale.js").Value} Value */

export const COUNTED = /** @type {const} */ (["submitted", "completed", "failed", "cancelled"]);
const MEASURED = /** @type {const} */ ([
  "in_flight", "waiting", "wait_p50", "wait_p95", "wait_p99", "run_p50", "run_p95", "run_p99",
]);
const NAMES = [...COUNTED, ...MEASURED];
/** @typedef {typeof NAMES[number]} Name */

const STEPS_MAX = 360;
const MINUTE = 60;

/**
 * Values by name, one for each step.
 * @typedef {object} Table
 * @property {number[]} at   when each step began
 * @property {number} step   seconds
 * @property {Record<string, Value[]>} columns
 */

export class Recent {
  constructor() {
    this.step = 10;
    /** When the first step began. */
    this.begin = 0;
    this.columns = nothing();
  }

  clear() {
    this.begin = 0;
    this.columns = nothing();
  }

  get length() {
    return this.columns.submitted.length;
  }

  /** When the steps that are known end; the next one begins there. */
  get end() {
    return this.begin + this.length * this.step;
  }

  /** What to ask for: steps that began later than this. Undefined: all there are. */
  get after() {
    return this.length === 0 ? undefined : this.end - this.step;
  }

  /** Whether the gateway has forgotten what was before: it keeps an hour. */
  get isFull() {
    return this.length >= STEPS_MAX;
  }

  /**
   * Take in an answer to a question with `after`, in O(steps).
   * @param {any} answer of `GET metrics/recent`
   * @returns {boolean} false: it does not continue what is known, since the gateway was started again or its clock was
   *   set. All is forgotten, and has to be asked for from the beginning.
   */
  add(answer) {
    const step = Number(answer?.step_seconds) || 10;
    const from = Number(answer?.from) || 0;
    if (this.length > 0 && (step !== this.step || Math.abs(from - this.end) > step / 2)) {
      this.clear();
      return false;
    }
    if (this.length === 0) this.begin = from;
    this.step = step;
    const lists = NAMES.map((name) => (Array.isArray(answer?.[name]) ? answer[name] : null));
    const added = Math.min(...lists.map((list) => list?.length ?? Infinity));
    if (!Number.isFinite(added)) return true;
    NAMES.forEach((name, place) => {
      const values = (lists[place] ?? Array(added).fill(null)).slice(0, added).map(number);
      this.columns[name] = [...this.columns[name], ...values].slice(-STEPS_MAX);
    });
    this.begin = from + added * step - this.length * step;
    return true;
  }

  /** @returns {Table} */
  steps() {
    return { at: Array.from({ length: this.length }, (_, place) => this.begin + place * this.step), step: this.step, columns: this.columns };
  }

  /**
   * What is counted, by minutes of the clock, and `share`: failures among what ended by itself. A minute that is not
   * over, or whose beginning is not known, would look like a fall, and is left out, unless nothing
   * happened in the others, or there is no whole minute yet.
   * @returns {Table}
   */
  minutes() {
    /** @type {number[]} */
    const at = [];
    /** @type {Record<string, Value[]>} */
    const columns = Object.fromEntries([...COUNTED, "share"].map((name) => [name, /** @type {Value[]} */ ([])]));
    for (let place = 0; place < this.length; place += 1) {
      const minute = Math.floor((this.begin + place * this.step) / MINUTE) * MINUTE;
      if (at.at(-1) !== minute) {
        at.push(minute);
        for (const name of COUNTED) columns[name]?.push(0);
      }
      for (const name of COUNTED) {
        const column = /** @type {number[]} */ (columns[name]);
        column[at.length - 1] = (column[at.length - 1] ?? 0) + (this.columns[name][place] ?? 0);
      }
    }
    const partial = Number(this.end < (at.at(-1) ?? 0) + MINUTE) + Number(this.begin > (at[0] ?? 0));
    const isYoung = at.length <= partial;
    const leaveOut = (/** @type {number} */ place) => {
      const isHeard = COUNTED.some((name) => columns[name]?.some((value, other) => other !== place && value !== 0));
      if (!isHeard || isYoung) return;
      for (const column of [at, ...COUNTED.map((name) => columns[name])]) column?.splice(place, 1);
    };
    if (this.end < (at.at(-1) ?? 0) + MINUTE) leaveOut(at.length - 1);
    if (this.begin > (at[0] ?? 0)) leaveOut(0);
    columns.share = at.map((_, place) => share(columns.failed?.[place] ?? 0, columns.completed?.[place] ?? 0));
    return { at, step: MINUTE, columns };
  }

  /**
   * How many in the newest `seconds`, or in all that is known.
   * @param {typeof COUNTED[number]} name
   * @param {number} [seconds]
   */
  sum(name, seconds = Infinity) {
    const steps = Math.min(this.length, Math.floor(seconds / this.step));
    return steps === 0 ? 0 : this.columns[name].slice(-steps).reduce((/** @type {number} */ sum, value) => sum + (value ?? 0), 0);
  }

  /**
   * The newest value there is.
   * @param {Name} name
   * @returns {Value}
   */
  latest(name) {
    return this.columns[name].findLast((value) => value !== null) ?? null;
  }
}

/**
 * Failures among the runs that were not cancelled; null when there were none.
 * @param {number} failed
 * @param {number} completed
 * @returns {Value}
 */
export function share(failed, completed) {
  return failed + completed > 0 ? failed / (failed + completed) : null;
}

/** @returns {Record<Name, Value[]>} */
function nothing() {
  return /** @type {any} */ (Object.fromEntries(NAMES.map((name) => [name, []])));
}

/** @param {unknown} value */
function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? Math.max(0, value) : null;
}
