// Loads the visible part of a run's log and follows new lines while the log is on the screen.

import { Refused } from "../lib/api.js";
import { now } from "../lib/clock.js";
import { connection } from "../lib/connection.js";
import { everything } from "../lib/log_filter.js";
import { LogSource } from "../lib/log_source.js";
import { LogWindow } from "../lib/log_window.js";
import { isTrouble, poll } from "../lib/poll.js";
import { isTerminal } from "../lib/run_facts.js";
import { takeSlot } from "../lib/slots.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/wire.js").LogLine} LogLine */
/** @typedef {import("../lib/log_filter.js").LogFilter} LogFilter */
/**
 * @typedef {object} Listener
 * @property {() => void} onChange
 * @property {() => boolean} isFollowing  scrolled to the end: old lines may be dropped for new ones
 */

/** The polling interval without a stream, and the pause before a stream is reopened. */
const TURN_SECONDS = 1.5;
/** How long the stream stays open after the log was scrolled or switched away. */
const AWAY_MS = 2000;
/** New lines are batched for this long before drawing. */
const FLUSH_MS = 40;
/** No lines arrive later than this after the end of a run. By then the gateway also reports lost lines. */
const LATE_SECONDS = 12;

export class LogReader {
  /**
   * @param {string} id
   * @param {Listener} listener
   */
  constructor(id, listener) {
    this.source = new LogSource(id);
    this.listener = listener;
    this.window = new LogWindow();
    /** @type {LogFilter} */
    this.filter = everything;
    /** @type {Run | null} */
    this.run = null;
    /** The first page was loaded. */
    this.isReady = false;
    /** No more lines will arrive. */
    this.isComplete = false;
    /** The gateway stores no logs. */
    this.isOff = false;
    /** The gateway's error text, if it refused the last request. */
    this.refusal = "";
    this.isLooked = false;
    /** @type {"start" | "end"} which end of the log to load first */
    this.from = "end";
    /** @type {LogLine[]} received but not yet drawn */
    this.fresh = [];
    this.isPaging = false;
    /** Incremented each time the log is loaded from scratch. */
    this.readings = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.flushing = undefined;
    /** Aborted when the filter changes. */
    this.asking = new AbortController();
    /** @type {AbortController | null} */
    this.streaming = null;
    this.stopping = new AbortController();
    const { signal } = this.stopping;
    document.addEventListener("visibilitychange", () => this.watchLooks(), { signal });
    const unfollow = connection.follow((state) => {
      if (state !== "locked") return;
      this.forget();
      this.window.clear(); // lines read with a revoked key must not stay visible
      this.listener.onChange();
    });
    signal.addEventListener("abort", unfollow, { once: true });
    this.polling = poll(TURN_SECONDS, (turn) => this.turn(turn));
  }

  stop() {
    this.stopping.abort();
    this.asking.abort();
    this.streaming?.abort();
    this.polling.stop();
    clearTimeout(this.leaving);
    clearTimeout(this.flushing);
    clearTimeout(this.checking);
  }

  /** @param {Run} run */
  show(run) {
    const before = this.run;
    this.run = run;
    if (before?.status === run.status && before.attempt === run.attempt) return;
    if (before !== null && isTerminal(before.status) && !isTerminal(run.status)) this.isComplete = false;
    this.polling.soon();
  }

  /** Report whether the log is on the screen. @param {boolean} isLooked */
  look(isLooked) {
    this.isLooked = isLooked;
    this.watchLooks();
  }

  watchLooks() {
    clearTimeout(this.leaving);
    if (this.isLooked && !document.hidden) this.polling.soon();
    else this.leaving = setTimeout(() => this.streaming?.abort(), AWAY_MS);
  }

  /**
   * Load from scratch with another filter or from the other end. The old lines stay until the new ones arrive.
   * @param {LogFilter} filter
   * @param {"start" | "end"} from
   */
  ask(filter, from) {
    this.filter = filter;
    this.from = from;
    this.forget();
    this.polling.soon();
  }

  forget() {
    this.asking.abort();
    this.asking = new AbortController();
    this.streaming?.abort();
    clearTimeout(this.flushing);
    this.flushing = undefined;
    this.fresh = [];
    this.isReady = this.isComplete = this.isPaging = false;
    this.refusal = "";
    this.listener.onChange();
  }

  /** @param {AbortSignal} signal */
  async turn(signal) {
    if (!this.isLooked || this.run === null || this.run.gone_at !== undefined) return;
    if (!this.isReady) await this.begin();
    if (this.isReady && !this.isComplete && !this.window.hasLater && this.mayGrow()) await this.live(signal);
  }

  /** Whether new lines may arrive: the run has started, and it or the selected attempt has not ended long ago. */
  mayGrow() {
    const run = /** @type {Run} */ (this.run);
    if (this.isOff || run.status === "PENDING") return false;
    const ended = run.end_time ?? run.updated_at;
    const isPast = this.filter.attempt !== null && this.filter.attempt < (run.attempt ?? 1);
    this.isComplete = isPast || (isTerminal(run.status) && typeof ended === "number" && now() - ended > LATE_SECONDS);
    if (this.isComplete) this.listener.onChange();
    return !this.isComplete;
  }

  async begin() {
    const fromStart = this.from === "start";
    await this.page(async (signal) => {
      const page = await this.source[fromStart ? "first" : "last"](this.filter, undefined, signal);
      if (signal.aborted) return;
      this.window.clear();
      this.window.append(page.lines);
      this.window.hasEarlier = !fromStart && page.hasMore;
      this.window.hasLater = fromStart && page.hasMore;
      this.isOff = page.isOff;
      this.isReady = true;
      this.readings += 1;
    });
  }

  /** Load the page before the window. */
  async earlier() {
    if (!this.isReady || this.isPaging || !this.window.hasEarlier) return;
    await this.page(async (signal) => {
      const page = await this.source.last(this.filter, this.window.first, signal);
      if (signal.aborted) return;
      this.window.hasEarlier = page.hasMore;
      this.window.prepend(page.lines);
      if (this.window.hasLater) this.streaming?.abort(); // its lines would not be adjacent to the window
    });
  }

  /** Load the page after the window. */
  async later() {
    if (!this.isReady || this.isPaging || !this.window.hasLater) return;
    await this.page(async (signal) => {
      const page = await this.source.first(this.filter, this.window.last, signal);
      if (signal.aborted) return;
      this.window.hasLater = page.hasMore;
      this.window.append(page.lines);
    });
    if (!this.window.hasLater) this.polling.soon();
  }

  /** Load new lines without a stream. */
  async readNew() {
    await this.page(async (signal) => {
      const page = await this.source.first(this.filter, this.window.last, signal);
      if (signal.aborted) return;
      this.window.hasLater = page.hasMore;
      this.grow(page.lines);
    });
  }

  /** Run one request at a time. @param {(signal: AbortSignal) => Promise<void>} work */
  async page(work) {
    const { asking } = this;
    this.isPaging = true;
    try {
      await work(AbortSignal.any([asking.signal, this.stopping.signal]));
      if (asking === this.asking) this.refusal = "";
    } catch (error) {
      if (!isTrouble(error)) throw error;
      if (asking === this.asking && error instanceof Refused) this.tellRefused(error);
    } finally {
      if (asking === this.asking) {
        this.isPaging = false;
        if (!this.stopping.signal.aborted) this.listener.onChange();
      }
    }
  }

  /** @param {Refused} error */
  tellRefused(error) {
    this.refusal = error.words;
    if (error.status === 404) this.isReady = this.isComplete = true; // the run was removed: do not retry
  }

  /** @param {AbortSignal} signal of the turn */
  async live(signal) {
    const { asking } = this;
    const giveBack = await takeSlot();
    try {
      if (signal.aborted || asking !== this.asking) return;
      if (giveBack === null) return await this.readNew();
      this.streaming = new AbortController();
      this.listener.onChange();
      const ended = await this.source.follow(this.filter, this.window.last, AbortSignal.any([signal, this.streaming.signal]),
        (line) => this.take(line));
      if (asking === this.asking && !this.streaming.signal.aborted) this.settle(ended);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (asking === this.asking) await this.readNew(); // too many open streams: poll instead
    } finally {
      this.streaming = null;
      giveBack?.();
      if (!this.stopping.signal.aborted) this.listener.onChange();
    }
  }

  /** @param {LogLine} line */
  take(line) {
    if (this.streaming === null || this.streaming.signal.aborted || connection.value === "locked") return;
    this.fresh.push(line);
    this.flushing ??= setTimeout(() => this.flush(), FLUSH_MS);
  }

  flush() {
    clearTimeout(this.flushing);
    this.flushing = undefined;
    const fresh = this.fresh;
    this.fresh = [];
    if (fresh.length === 0 || this.window.hasLater) return; // not adjacent to the window: loaded on demand
    this.grow(fresh);
    this.listener.onChange();
  }

  /** @param {LogLine[]} lines new ones at the end of the log */
  grow(lines) {
    if (this.listener.isFollowing() || this.window.hasRoomFor(lines)) {
      this.window.append(lines);
      return;
    }
    // The user is reading earlier lines: keep those and load the new ones on demand.
    this.window.hasLater = true;
    this.streaming?.abort();
  }

  /** @param {boolean} ended */
  settle(ended) {
    this.flush();
    if (!ended || this.window.hasLater) return;
    this.isComplete = true;
    clearTimeout(this.checking);
    this.checking = setTimeout(() => {
      if (this.isReady && !this.isPaging) void this.readNew();
    }, 1000 * LATE_SECONDS);
  }
}
