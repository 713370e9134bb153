// How many of the runs that a list is narrowed down to are in each status.

import { get } from "../lib/api.js";
import { poll } from "../lib/poll.js";
import { lastingPart } from "../lib/run_filter.js";

/** @typedef {import("../lib/run_filter.js").RunFilter} RunFilter */
/** @typedef {{ by_status: Record<string, number>, counted_max: number | null }} Counts  counted_max: so many at least */

const EVERY_SECONDS = 5;

export class RunCounts {
  /**
   * @param {() => RunFilter} filter
   * @param {(counts: Counts | null) => void} tell null: not known yet
   */
  constructor(filter, tell) {
    this.filter = filter;
    this.tell = tell;
    this.stopping = new AbortController();
    this.poll = poll(EVERY_SECONDS, () => this.ask());
  }

  async ask() {
    const query = { ...lastingPart(this.filter()), include: "counts", limit: 1 };
    const answer = await get("runs", query, this.stopping.signal);
    const now = { ...lastingPart(this.filter()), include: "counts", limit: 1 };
    if (JSON.stringify(now) === JSON.stringify(query)) this.tell(readCounts(answer?.counts));
  }

  /** Another list is shown. */
  soon() {
    this.tell(null);
    this.poll.soon();
  }

  stop() {
    this.poll.stop();
    this.stopping.abort();
  }
}

/**
 * @param {any} counts
 * @returns {Counts | null}
 */
export function readCounts(counts) {
  if (typeof counts?.by_status !== "object" || counts.by_status === null) return null;
  const numbers = Object.entries(counts.by_status).filter(([, number]) => Number.isSafeInteger(number));
  const { counted_max: most } = counts;
  return { by_status: Object.fromEntries(numbers), counted_max: Number.isSafeInteger(most) ? most : null };
}
