// How many of the runs that a list is narrowed down to are in each status.

import { getChanged } from "../lib/api.js";
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
    /** @type {{ query: string, tag: string | null }} what was told last */
    this.known = { query: "", tag: null };
    this.stopping = new AbortController();
    this.poll = poll(EVERY_SECONDS, () => this.ask());
  }

  async ask() {
    const query = { ...lastingPart(this.filter()), include: "counts", limit: 1 };
    const text = JSON.stringify(query);
    const tag = this.known.query === text ? this.known.tag : null;
    const found = await getChanged("runs", query, tag, this.stopping.signal);
    if (found === null || JSON.stringify({ ...lastingPart(this.filter()), include: "counts", limit: 1 }) !== text) return;
    this.known = { query: text, tag: found.tag };
    this.tell(readCounts(found.answer?.counts));
  }

  /** Another list is shown. */
  soon() {
    this.known = { query: "", tag: null };
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
