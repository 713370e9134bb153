// What can be told of workers, queues and wheels by looking at what the gateway says of them. No page, no network.

/** @typedef {import("./wire.js").Worker} Worker */
/** @typedef {import("./wire.js").Queue} Queue */
/** @typedef {import("./wire.js").Wheel} Wheel */

/** A worker with free slots asks the queue all the time; one that got no answer for this long is deaf. */
const DEAF_SECONDS = 60;

/**
 * @param {unknown} value
 * @returns {any[]}
 */
export function list(value) {
  return Array.isArray(value) ? value : [];
}

/**
 * @param {unknown} value
 * @returns {string[]}
 */
export function texts(value) {
  return list(value).map(String);
}

/** @param {unknown} value */
export function whole(value) {
  return typeof value === "number" && Number.isFinite(value) ? Math.max(0, value) : 0;
}

/** @param {Worker} worker */
export function isAlive(worker) {
  return worker.state === "RUNNING" || worker.state === "IDLE";
}

/**
 * How many of its slots execute a run. Its runs may be more: packs and programs have slots of their own.
 * @param {Worker} worker
 */
export function busySlots(worker) {
  return whole(worker.busy ?? Math.min(list(worker.running).length, whole(worker.slots)));
}

/**
 * How many there are, and how much of them is in use. Slots of workers that are gone do not count.
 * @param {Worker[]} workers
 */
export function summary(workers) {
  const alive = workers.filter(isAlive);
  return {
    alive: alive.length,
    slots: alive.reduce((sum, worker) => sum + whole(worker.slots), 0),
    busy: alive.reduce((sum, worker) => sum + busySlots(worker), 0),
    gone: workers.filter((worker) => worker.state === "DISCONNECTED").length,
  };
}

/**
 * Those in trouble first, then those at work, then those that have stopped; by name within. A worker that takes a run
 * and ends it stays where it is, so that nothing jumps under the hand.
 * @param {Worker[]} workers
 */
export function inOrder(workers) {
  const names = new Intl.Collator("en", { numeric: true });
  const rank = (/** @type {Worker} */ worker) => (worker.state === "DISCONNECTED" ? 0 : isAlive(worker) ? 1 : 2);
  return [...workers].sort((a, b) => rank(a) - rank(b) || names.compare(String(a.worker_id), String(b.worker_id)));
}

/**
 * Alive, with room, and still it gets nothing from the queue.
 * @param {Worker} worker
 * @param {number} at
 */
export function isDeaf(worker, at) {
  return isAlive(worker) && typeof worker.last_pull_at === "number" && at - worker.last_pull_at > DEAF_SECONDS &&
    busySlots(worker) < whole(worker.slots);
}

/**
 * How a queue has changed in ten minutes. A few more or less, measured by what was there, are no change worth a word.
 * @param {Queue} queue
 * @returns {{ way: "up" | "down" | "same" | "unknown", by: number }}
 */
export function growth(queue) {
  if (typeof queue.depth_before !== "number") return { way: "unknown", by: 0 };
  const by = whole(queue.depth) - queue.depth_before;
  return { way: by > 0 ? "up" : by < 0 ? "down" : "same", by: Math.abs(by) };
}

/**
 * A part of the greatest as a width: what is not nothing can be seen.
 * @param {number} value
 * @param {number} most
 */
export function width(value, most) {
  if (!(value > 0) || !(most > 0)) return "0%";
  return `${Math.max(1.5, Math.min(100, (100 * value) / most)).toFixed(1)}%`;
}

/**
 * `my_tasks-1.0-py3-none-any.whl` is my_tasks, 1.0, py3-none-any. A name that is none is its own package.
 * @param {string} name
 */
export function readWheelName(name) {
  const [package_ = name, version = "", ...rest] = name.replace(/\.whl$/, "").split("-");
  return { package: package_, version, platform: rest.join("-") };
}

/**
 * Wheels by package, the newest first: a version is only taken when it is newer than those that are there, so the one
 * that came last is the newest. O(n log n).
 * @param {Wheel[]} wheels
 * @returns {{ package: string, wheels: Wheel[] }[]}
 */
export function byPackage(wheels) {
  /** @type {Map<string, Wheel[]>} */
  const packages = new Map();
  for (const wheel of wheels) {
    const name = readWheelName(String(wheel.name)).package.toLowerCase().replace(/[-_.]+/g, "-");
    packages.set(name, [...(packages.get(name) ?? []), wheel]);
  }
  return [...packages].sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, found]) => ({ package: name, wheels: found.sort((a, b) => b.modified - a.modified) }));
}

/**
 * @typedef {object} Holders  what workers say of one wheel
 * @property {string[]} has
 * @property {string[]} installing
 * @property {{ worker: string, why: string }[]} failed
 * @property {{ worker: string, why: string }[]} skipped
 */

/**
 * Which workers have which wheel, as they tell it themselves. O(workers + what they tell).
 * @param {Worker[]} workers
 * @returns {Map<string, Holders>}
 */
export function holders(workers) {
  /** @type {Map<string, Holders>} */
  const found = new Map();
  const of = (/** @type {unknown} */ name) => {
    const key = String(name);
    const known = found.get(key) ?? { has: [], installing: [], failed: [], skipped: [] };
    found.set(key, known);
    return known;
  };
  for (const { worker_id: worker, wheel_sync: sync } of workers) {
    for (const name of list(sync?.installed)) of(name).has.push(worker);
    for (const name of list(sync?.installing)) of(name).installing.push(worker);
    for (const each of list(sync?.failed)) of(each?.wheel_name).failed.push({ worker, why: String(each?.error ?? "") });
    for (const each of list(sync?.skipped)) of(each?.wheel_name).skipped.push({ worker, why: String(each?.reason ?? "") });
  }
  return found;
}

/**
 * The workers a wheel is meant for: those that sync wheels and share a tag with it; all that sync when it has none.
 * @param {Wheel} wheel
 * @param {Worker[]} workers
 */
export function wantedBy(wheel, workers) {
  const tags = new Set(texts(wheel.tags));
  return workers.filter((worker) => worker.wheel_sync && (tags.size === 0 || texts(worker.tags).some((tag) => tags.has(tag))));
}
