// When what happened, as bars over one axis. No DOM: a run in, instants and rows out.

import { hasEnded, instant, isTerminal, recordOf, stateOf, taskNames } from "./run_facts.js";

/** @typedef {import("./wire.js").Run} Run */
/**
 * @typedef {object} Bar
 * @property {string} name
 * @property {string} state
 * @property {number | null} from   null: not begun, or not known
 * @property {number | null} to     null: goes on, or not begun
 * @property {number | null} seconds how long it took, as told by its worker
 * @property {number | null} waitsFrom since when it has been waiting for other tasks
 * @property {number | null} waitsTo   null: it still does
 */
/** @typedef {{ attempt: number | null, worker: string | null, from: number, to: number, why: string }} PastBar */
/**
 * @typedef {object} Chart
 * @property {{ from: number, to: number | null } | null} queued from the submission to the first attempt
 * @property {PastBar[]} past            earlier attempts, oldest first
 * @property {{ from: number, to: number | null } | null} present the newest attempt; to null: it goes on
 * @property {Bar[]} tasks               in the order in which they began
 */

/**
 * O(n log n) for n tasks.
 * @param {Run} run
 * @returns {Chart}
 */
export function chartOf(run) {
  const past = pastOf(run);
  const submitted = instant(run.submitted_at);
  const ended = isTerminal(run.status);
  // Who holds a program's attempt is nobody's business here: one that waits again has none.
  const isHeld = run.kind === "exec" ? run.status !== "PENDING" : Boolean(run.attempt_id);
  const handedBack = past.length > 0 && !isHeld && !ended;
  const start = handedBack ? null : instant(run.start_time);
  // Of a run that was removed nobody knows the end: its bars end where it was last heard of.
  const end = notBefore(ended ? instant(run.end_time) ?? instant(run.updated_at) : instant(run.gone_at), start);
  const begun = past[0]?.from ?? start;
  // A run that never began waited until it was ended.
  const queued = submitted === null ? null : { from: submitted, to: notBefore(begun ?? end, submitted) };
  const present = start === null ? null : { from: start, to: end };
  return { queued, past, present, tasks: tasksOf(run, start, end) };
}

/**
 * @param {Run} run
 * @returns {PastBar[]}
 */
function pastOf(run) {
  const told = Array.isArray(run.earlier_attempts) ? run.earlier_attempts : [];
  return told.flatMap((each) => {
    const to = instant(each?.ended_at);
    const from = instant(each?.started_at) ?? to;
    if (from === null) return [];
    const attempt = typeof each.attempt === "number" ? each.attempt : null;
    return [{
      attempt, worker: typeof each.worker_id === "string" ? each.worker_id : null, from, to: Math.max(from, to ?? from),
      why: String(each.why ?? ""),
    }];
  });
}

/**
 * @param {Run} run
 * @param {number | null} start
 * @param {number | null} end
 * @returns {Bar[]}
 */
function tasksOf(run, start, end) {
  const bars = taskNames(run).map((name) => barOf(name, run, start, end));
  const place = new Map(bars.map((bar, i) => [bar, i]));
  return bars.sort((one, two) => (one.from ?? Infinity) - (two.from ?? Infinity) ||
    (place.get(one) ?? 0) - (place.get(two) ?? 0));
}

/**
 * @param {string} name
 * @param {Run} run
 * @param {number | null} start
 * @param {number | null} end
 * @returns {Bar}
 */
function barOf(name, run, start, end) {
  const record = recordOf(run, name);
  const state = stateOf(run, name);
  const from = instant(record?.started_at);
  const ended = instant(record?.ended_at);
  const took = typeof record?.duration_ms === "number" && record.duration_ms >= 0 ? record.duration_ms / 1000 : null;
  let to = null;
  if (from !== null) {
    // Clocks are set back at times: a bar has no negative length. A task that says it is done, or whose run has ended,
    // does not go on.
    if (ended !== null) to = Math.max(from, ended);
    else if (took !== null) to = from + took;
    else if (hasEnded(state) || end !== null) to = Math.max(from, end ?? from);
  }
  const waited = start !== null && (from !== null || !hasEnded(state));
  return {
    name, state, from, to, seconds: took ?? (from !== null && ended !== null ? Math.max(0, ended - from) : null),
    waitsFrom: waited ? start : null, waitsTo: waited ? (from ?? end) : null,
  };
}

/**
 * @param {number | null} at
 * @param {number | null} floor
 */
function notBefore(at, floor) {
  return at === null || floor === null ? at : Math.max(at, floor);
}

/**
 * What the axis covers. A run that waited for hours and took seconds would be a hair's breadth: what was before the
 * newest attempt is left out then, unless it is asked for.
 * @param {Chart} chart
 * @param {number} now
 * @param {boolean | null} whole null: as fits
 * @returns {{ from: number, zero: number, to: number, live: boolean, whole: boolean, cut: boolean }}
 *   zero: where counting begins; cut: something is left out
 */
export function domainOf(chart, now, whole) {
  const bars = chart.tasks.filter((bar) => bar.from !== null);
  const starts = [chart.present?.from, ...bars.map((bar) => bar.from)].filter((at) => typeof at === "number");
  const known = [chart.queued?.from, chart.past[0]?.from, ...starts].filter((at) => typeof at === "number");
  const first = Math.min(...known, now);
  const begun = starts.length > 0 ? Math.min(...starts) : null;
  const live = [chart.present ?? chart.queued, ...bars].some((bar) => bar && bar.to === null);
  const ends = [chart.queued?.to, chart.present?.to, ...chart.past.map((bar) => bar.to), ...bars.map((bar) => bar.to)];
  const to = Math.max(...ends.filter((at) => typeof at === "number"), live ? now : first);
  const zero = begun ?? first;
  const fits = zero - first <= (to - zero) * (chart.past.length > 0 ? 12 : 1.5); // earlier attempts are worth more room
  const shown = begun === null || (whole ?? fits);
  return { from: shown ? first : zero, zero, to, live, whole: shown, cut: !shown && zero - first > 0 };
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400];

/**
 * Marks of an axis: at round distances from zero, `most` of them at most.
 * @param {number} from relative to zero, so not above it
 * @param {number} to
 * @param {number} most
 * @returns {number[]}
 */
export function ticksOf(from, to, most) {
  const length = to - from;
  if (!(length > 0) || !Number.isFinite(length) || most < 1) return [0];
  const wanted = length / most;
  const step = wanted < 1 ? fine(wanted) : STEPS.find((each) => each >= wanted) ?? 86_400 * Math.ceil(wanted / 86_400);
  const marks = [];
  for (let n = Math.ceil(from / step - 1e-9); n * step <= to + step * 1e-9; n += 1) marks.push(n === 0 ? 0 : n * step);
  return marks;
}

/** @param {number} wanted below one */
function fine(wanted) {
  const power = 10 ** Math.floor(Math.log10(wanted));
  return power * /** @type {number} */ ([1, 2, 5, 10].find((each) => each * power >= wanted * (1 - 1e-9)));
}
