// How long runs waited and ran, as lengths on one scale for all rows: only then can they be compared.

/** @typedef {import("./wire.js").RunSummary} RunSummary */
/** @typedef {{ wait: number, run: number | null, live: boolean }} Times  in seconds; run null: it never began */

/**
 * @param {RunSummary} run
 * @param {number} at now
 * @returns {Times | null} null: it is not known when it was submitted
 */
export function timesOf(run, at) {
  const { submitted_at: submitted, start_time: start, end_time: end } = run;
  if (submitted === undefined) return null;
  const until = end ?? Math.max(at, submitted);
  const wait = Math.max(0, (start ?? until) - submitted);
  return { wait, run: start === undefined ? null : Math.max(0, until - start), live: end === undefined };
}

/** Ends of scales that people can read, in seconds. */
const STEPS = [
  1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 43_200, 86_400, 172_800, 604_800,
  2_592_000,
];
const SAMPLE = 400;
const SHARE = 0.9;

/**
 * The end of the scale: most rows fit in, and one that took days does not make the others dots. It shrinks only when
 * there is much room, so that bars do not jump. O(1): looks at some hundred rows, evenly taken.
 * @param {RunSummary[]} rows
 * @param {number} at
 * @param {number} before the scale so far
 */
export function scaleOf(rows, at, before) {
  const stride = Math.max(1, Math.floor(rows.length / SAMPLE));
  const lengths = [];
  for (let index = 0; index < rows.length; index += stride) {
    const times = timesOf(/** @type {RunSummary} */ (rows[index]), at);
    if (times) lengths.push(times.wait + (times.run ?? 0));
  }
  if (lengths.length === 0) return before;
  lengths.sort((a, b) => a - b);
  const typical = /** @type {number} */ (lengths[Math.min(lengths.length - 1, Math.floor(lengths.length * SHARE))]);
  const end = STEPS.find((step) => step >= typical) ?? /** @type {number} */ (STEPS.at(-1));
  return end > before || typical < before * 0.3 ? end : before;
}

/**
 * Shares of the track, and whether the bar goes on beyond its end. What has happened is always visible.
 * @param {Times} times
 * @param {number} scale
 */
export function barOf(times, scale) {
  const total = times.wait + (times.run ?? 0);
  const over = total > scale;
  const wait = Math.min(1, times.wait / (over ? total : scale));
  const run = Math.min(1, (times.run ?? 0) / (over ? total : scale));
  return { wait, run, over };
}
