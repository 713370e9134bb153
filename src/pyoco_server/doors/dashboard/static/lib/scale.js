// From numbers to places on a chart, and to the few numbers beside its axes. No page here.

/** @typedef {number | null} Value null: there was nothing to measure */

/** Seconds between two ticks that people count in. */
const SPANS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
  3600, 7200, 14_400, 21_600, 43_200, 86_400,
];
const CLOCK_STEPS = [60, 120, 300, 600, 900, 1200, 1800, 3600];

/**
 * A straight line from one range to another. An empty range of numbers leads to the beginning.
 * @param {number} from
 * @param {number} to
 * @param {number} start
 * @param {number} end
 * @returns {(value: number) => number}
 */
export function linear(from, to, start, end) {
  const ratio = to === from ? 0 : (end - start) / (to - from);
  return (value) => start + (value - from) * ratio;
}

/**
 * From 0 to the first one that is not below `top`.
 * @param {number} top
 * @param {number} step
 */
function upTo(top, step) {
  const steps = Math.max(1, Math.ceil(top / step - 1e-9));
  // Multiplied, not added up: 3 * 0.1 is nearer to 0.3 than 0.1 + 0.1 + 0.1, and rounding takes the rest.
  return Array.from({ length: steps + 1 }, (_, place) => Number((place * step).toPrecision(12)));
}

/**
 * Ticks for things that are counted: whole numbers.
 * @param {number} top the largest value; anything odd counts as nothing
 * @param {number} [most] steps
 */
export function countTicks(top, most = 4) {
  const high = Number.isFinite(top) && top > 0 ? top : 1;
  let step = 1;
  for (let place = 0; high / step > most; place += 1) step = [1, 2, 5][place % 3] * 10 ** Math.floor(place / 3);
  return upTo(high, step);
}

/**
 * Ticks for seconds.
 * @param {number} top
 * @param {number} [most]
 */
export function spanTicks(top, most = 4) {
  const high = Number.isFinite(top) && top > 0 ? top : 0.1;
  const step = SPANS.find((each) => high / each <= most);
  return step === undefined ? countTicks(high / 86_400, most).map((day) => day * 86_400) : upTo(high, step);
}

/**
 * Ticks for shares of 1.
 * @param {number} top
 */
export function shareTicks(top) {
  const high = Number.isFinite(top) ? Math.min(top, 1) : 1;
  const step = [0.01, 0.02, 0.05, 0.1, 0.25].find((each) => high / each <= 4) ?? 0.25;
  return upTo(high, step);
}

/**
 * Instants on the clock between two instants: full minutes, quarters of an hour, as few as asked for.
 * @param {number} from
 * @param {number} to
 * @param {number} most
 * @returns {number[]}
 */
export function timeTicks(from, to, most) {
  const step = CLOCK_STEPS.find((each) => (to - from) / each <= Math.max(1, most)) ?? 3600;
  const first = Math.ceil(from / step) * step;
  const length = to < first ? 0 : Math.floor((to - first) / step) + 1;
  return Array.from({ length }, (_, place) => first + place * step);
}

/**
 * The largest of all values; 0 when there are none.
 * @param {Value[][]} columns
 */
export function largest(columns) {
  let top = 0;
  for (const column of columns) {
    for (const value of column) if (value !== null && value > top) top = value;
  }
  return top;
}

/**
 * Stretches without a gap, as pairs of the first and the last place.
 * @param {Value[]} values
 * @returns {[number, number][]}
 */
export function stretches(values) {
  /** @type {[number, number][]} */
  const found = [];
  values.forEach((value, place) => {
    const last = found.at(-1);
    if (value === null) return;
    if (last !== undefined && last[1] === place - 1) last[1] = place;
    else found.push([place, place]);
  });
  return found;
}

/**
 * A line through the values, with a gap where there is none.
 * @param {Value[]} values
 * @param {(place: number) => number} x
 * @param {(value: number) => number} y
 */
export function linePath(values, x, y) {
  return stretches(values).filter(([first, last]) => first < last).map(([first, last]) => {
    const points = values.slice(first, last + 1).map((value, place) => `${near(x(first + place))} ${near(y(value ?? 0))}`);
    return `M${points.join("L")}`;
  }).join("");
}

/**
 * A value between two gaps is on no line: a stroke of no length, which round ends make a dot.
 * @param {Value[]} values
 * @param {(place: number) => number} x
 * @param {(value: number) => number} y
 */
export function dotPath(values, x, y) {
  const alone = stretches(values).filter(([first, last]) => first === last);
  return alone.map(([place]) => `M${near(x(place))} ${near(y(values[place] ?? 0))}h0`).join("");
}

/**
 * Bars from one height to another; those of no height are left out.
 * @param {number[]} bottoms
 * @param {Value[]} values how much each adds
 * @param {(place: number) => number} x the left side
 * @param {number} width
 * @param {(value: number) => number} y
 */
export function barPath(bottoms, values, x, width, y) {
  return values.map((value, place) => {
    const bottom = bottoms[place] ?? 0;
    if (value === null || value <= 0) return "";
    const top = y(bottom + value);
    return `M${near(x(place))} ${near(top)}h${near(width)}V${near(y(bottom))}h${near(-width)}z`;
  }).join("");
}

/** @param {number} place */
function near(place) {
  return Math.round(place * 10) / 10;
}

const LONG_STEPS = [3600, 7200, 10_800, 14_400, 21_600, 43_200, 86_400, 172_800, 432_000, 604_800, 864_000];

/**
 * The same over days: full hours, or full days of the gateway's steps.
 * @param {number} from
 * @param {number} to
 * @param {number} most
 * @param {number} [least] seconds between two of them
 * @returns {number[]}
 */
export function dayTicks(from, to, most, least = 0) {
  const step = LONG_STEPS.find((each) => each >= least && (to - from) / each <= Math.max(1, most)) ?? 864_000;
  const first = Math.ceil(from / step) * step;
  const length = to < first ? 0 : Math.floor((to - first) / step) + 1;
  return Array.from({ length }, (_, place) => first + place * step);
}
