// The runs a list shows, kept in memory: what came in is merged by id, and stays where the eye has found it.
//
// Two orders meet here. The gateway lists by the latest change, so every heartbeat would move a row; the eye wants rows
// that stay. So a row's place is given by when its run was submitted, newest first, which never changes.
//
// How they fit together. Let W be the oldest `updated_at` that the walk through the pages has reached. All runs changed
// at W or later are here. A run that is not here was changed, and therefore submitted, before W. So above W, by time of
// submission, the list has no gaps, and a next page never puts a row there: what one has read stays as it was. Below W
// are the runs that were submitted long ago and changed lately; there the next pages fill in between.
//
// New runs come in at the top. An old run that is not here, and changes, comes in at its place below.

/** @typedef {import("./wire.js").RunSummary} RunSummary */
/** @typedef {import("./run_filter.js").RunFilter} RunFilter */
/** @typedef {RunSummary & { rank: number, schedule_name?: string }} Row  rank: when it was submitted, as it was first heard */
/** @typedef {{ added: number, newer: number, removed: string[] }} Change  newer: added above all others */

/** No more rows than these are kept: a page that is open for weeks must not grow. */
export const ROWS_MAX = 20_000;
const ERROR_CHARACTERS = 300;
const NAME_CHARACTERS = 512;
const LABELS_MAX = 20;
const ENDED = new Set(["COMPLETED", "FAILED", "CANCELLED"]);

/** @param {{ status: string }} run */
export function hasEnded(run) {
  return ENDED.has(run.status);
}

export class RunList {
  /**
   * @param {RunFilter} filter only the status is looked at: the rest is asked of the gateway, and no run leaves it
   * @param {number} [rowsMax]
   */
  constructor(filter, rowsMax = ROWS_MAX) {
    this.filter = filter;
    this.rowsMax = rowsMax;
    /** @type {Row[]} as they are shown */
    this.rows = [];
    /** @type {Map<string, Row>} */
    this.byId = new Map();
    /** Rows were left out because there are too many. */
    this.full = false;
  }

  /** When the newest was submitted. Where there is none, nothing is newer. */
  get top() {
    return this.rows[0]?.rank ?? Infinity;
  }

  /**
   * Take in what the gateway told. The later answer is the true one; only an end is never taken back, since nothing
   * leaves it and a second gateway may lag. O(k log k), and O(n) when runs came or went.
   * @param {unknown[]} items
   * @param {number} [top] what was submitted later is newer; by itself, than all that is here
   * @returns {Change}
   */
  merge(items, top = this.top) {
    /** @type {Map<string, Row>} */
    const added = new Map();
    /** @type {Map<string, Row>} */
    const changed = new Map();
    /** @type {Set<string>} */
    const left = new Set();
    for (const item of items) {
      const run = readRun(item);
      if (run === null) continue;
      const known = this.byId.get(run.run_id);
      if (known && hasEnded(known) && !hasEnded(run)) continue;
      if (this.filter.status !== undefined && run.status !== this.filter.status) {
        if (known) left.add(run.run_id);
        added.delete(run.run_id);
      } else if (known) {
        left.delete(run.run_id);
        changed.set(run.run_id, { ...run, rank: known.rank });
      } else {
        added.set(run.run_id, run);
      }
    }
    for (const row of changed.values()) this.replace(row);
    this.remove(left);
    const newer = [...added.values()].filter((row) => row.rank > top).length;
    this.insert([...added.values()]);
    return { added: added.size, newer, removed: [...left] };
  }

  /**
   * Drop all others: they are no longer stored, or further down than anybody looks.
   * @param {Set<string>} seen
   * @returns {string[]} those that went
   */
  keepOnly(seen) {
    const gone = this.rows.filter((row) => !seen.has(row.run_id)).map((row) => row.run_id);
    this.remove(new Set(gone));
    if (this.rows.length < this.rowsMax) this.full = false;
    return gone;
  }

  /**
   * Where a run is shown. O(log n)
   * @param {string | null} runId
   * @returns {number} -1: it is not
   */
  indexOf(runId) {
    const row = runId === null ? undefined : this.byId.get(runId);
    if (row === undefined) return -1;
    let low = 0;
    let high = this.rows.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (inOrder(/** @type {Row} */ (this.rows[middle]), row) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /**
   * How far back a walk has to go to meet all of these again: the oldest change among the first `count` rows, and
   * among those of `more`. O(count + more)
   * @param {number} count
   * @param {Iterable<string>} more
   */
  reach(count, more) {
    let oldest = Infinity;
    for (const row of this.rows.slice(0, count)) oldest = Math.min(oldest, row.updated_at);
    for (const runId of more) oldest = Math.min(oldest, this.byId.get(runId)?.updated_at ?? Infinity);
    return oldest;
  }

  /** @param {Row} row */
  replace(row) {
    this.rows[this.indexOf(row.run_id)] = row;
    this.byId.set(row.run_id, row);
  }

  /** @param {Set<string>} gone */
  remove(gone) {
    if (gone.size === 0) return;
    this.rows = this.rows.filter((row) => !gone.has(row.run_id));
    for (const runId of gone) this.byId.delete(runId);
  }

  /** @param {Row[]} added */
  insert(added) {
    if (added.length === 0) return;
    added.sort(inOrder);
    /** @type {Row[]} */
    const merged = [];
    let next = 0;
    for (const row of this.rows) {
      while (next < added.length && inOrder(/** @type {Row} */ (added[next]), row) < 0) {
        merged.push(/** @type {Row} */ (added[next++]));
      }
      merged.push(row);
    }
    this.rows = merged.concat(added.slice(next));
    for (const row of added) this.byId.set(row.run_id, row);
    if (this.rows.length <= this.rowsMax) return;
    this.full = true;
    for (const row of this.rows.splice(this.rowsMax)) this.byId.delete(row.run_id);
  }
}

/**
 * @param {Row} a
 * @param {Row} b
 */
function inOrder(a, b) {
  return b.rank - a.rank || (a.run_id < b.run_id ? -1 : Number(a.run_id > b.run_id));
}

/**
 * What a row needs, in the types it needs; long texts are cut. null: this is no run.
 * @param {unknown} item
 * @returns {Row | null}
 */
export function readRun(item) {
  if (typeof item !== "object" || item === null) return null;
  const given = /** @type {Record<string, unknown>} */ (item);
  const runId = text(given.run_id, 128);
  const updatedAt = instant(given.updated_at);
  if (runId === undefined || updatedAt === undefined) return null;
  const submittedAt = instant(given.submitted_at);
  return {
    run_id: runId,
    status: text(given.status, 64) ?? "",
    updated_at: updatedAt,
    rank: submittedAt ?? updatedAt,
    submitted_at: submittedAt,
    start_time: instant(given.start_time),
    end_time: instant(given.end_time),
    heartbeat_at: instant(given.heartbeat_at),
    kind: text(given.kind, 64),
    // Of a redacted run only its pack type is told, which is the name of its flow.
    flow_name: text(given.flow_name, NAME_CHARACTERS) ?? (given.kind === "pack" ? text(given.pack_type, NAME_CHARACTERS) : undefined),
    tag: text(given.tag, NAME_CHARACTERS),
    tags: Array.isArray(given.tags) ? given.tags.slice(0, LABELS_MAX).map((each) => String(each).slice(0, NAME_CHARACTERS)) : [],
    worker_id: text(given.worker_id, NAME_CHARACTERS),
    error: text(given.error, ERROR_CHARACTERS),
    params_preview: text(given.params_preview, ERROR_CHARACTERS),
    ...(given.schedule instanceof Object && "name" in given.schedule ? { schedule_name: text(given.schedule.name, NAME_CHARACTERS) } : {}),
    ...(given.kind === "pack" ? { money_state: text(given.money_state, 64), cost: costOf(given.cost), redacted: given.redacted === true } : {}),
    ...(given.kind === "exec" ? programMembers(given) : {}),
  };
}

/** @param {Record<string, unknown>} given */
function programMembers(given) {
  return {
    exec_name: text(given.exec_name, NAME_CHARACTERS), client_id: text(given.client_id, NAME_CHARACTERS),
    attempt: instant(given.attempt), exit_code: instant(given.exit_code),
    ...(given.status === "PENDING" ? { start_time: undefined } : {}), // that is when the attempt began that was put back
  };
}

/**
 * @param {unknown} value
 * @returns {import("./wire.js").Cost | undefined}
 */
function costOf(value) {
  if (typeof value !== "object" || value === null) return undefined;
  const { used_usd_micros, reserved_usd_micros } = /** @type {import("./wire.js").Cost} */ (value);
  return { used_usd_micros, reserved_usd_micros };
}

/**
 * @param {unknown} value
 * @param {number} length
 */
function text(value, length) {
  return typeof value === "string" && value !== "" ? value.slice(0, length) : undefined;
}

/** @param {unknown} value */
function instant(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}
