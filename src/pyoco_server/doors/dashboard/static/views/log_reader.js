// Reads the log of a run: the part that is looked at, and what is added to it, for as long as somebody looks.

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
 * @property {() => boolean} isFollowing  the end is looked at: lines at the beginning make room for new ones
 */

/** Without a stream: as often as that feels live. With one, the pause before it is taken up again. */
const TURN_SECONDS = 1.5;
/** Whoever scrolls away, or to another window, may be back at once. */
const AWAY_MS = 2000;
/** New lines are shown together. */
const FLUSH_MS = 40;
/** Lines come for so long after the end of a run, at most. Then the gateway also knows whether some were lost. */
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
    /** The first answer has come. */
    this.isReady = false;
    /** Nothing more will come. */
    this.isComplete = false;
    /** The gateway keeps no logs. */
    this.isOff = false;
    /** What the gateway said when it did not give them. */
    this.refusal = "";
    this.isLooked = false;
    /** @type {"start" | "end"} where to read from when it is read anew */
    this.from = "end";
    /** @type {LogLine[]} came and are not shown yet */
    this.fresh = [];
    this.isPaging = false;
    /** How often it was read anew. */
    this.readings = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.flushing = undefined;
    /** Ends with the question: another filter. */
    this.asking = new AbortController();
    /** @type {AbortController | null} */
    this.streaming = null;
    this.stopping = new AbortController();
    const { signal } = this.stopping;
    document.addEventListener("visibilitychange", () => this.watchLooks(), { signal });
    const unfollow = connection.follow((state) => {
      if (state !== "locked") return;
      this.forget();
      this.window.clear(); // what came with a key that counts no more is not shown
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

  /** Whether the lines are on the screen. @param {boolean} isLooked */
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
   * Read anew: other lines, or from another end. Until they are there, the old ones stay.
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

  /** It has been started; and if it has ended, or its attempt has, that was just now. */
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

  /** More of them, at the beginning of the window. */
  async earlier() {
    if (!this.isReady || this.isPaging || !this.window.hasEarlier) return;
    await this.page(async (signal) => {
      const page = await this.source.last(this.filter, this.window.first, signal);
      if (signal.aborted) return;
      this.window.hasEarlier = page.hasMore;
      this.window.prepend(page.lines);
      if (this.window.hasLater) this.streaming?.abort(); // what comes now does not stand next to what is here
    });
  }

  /** More of them, at its end. */
  async later() {
    if (!this.isReady || this.isPaging || !this.window.hasLater) return;
    await this.readOn();
    if (!this.window.hasLater) this.polling.soon();
  }

  async readOn() {
    await this.page(async (signal) => {
      const page = await this.source.first(this.filter, this.window.last, signal);
      if (signal.aborted) return;
      this.window.hasLater = page.hasMore;
      this.window.append(page.lines);
    });
  }

  /** One question at a time. @param {(signal: AbortSignal) => Promise<void>} work */
  async page(work) {
    const { asking } = this;
    this.isPaging = true;
    try {
      await work(AbortSignal.any([asking.signal, this.stopping.signal]));
      if (asking === this.asking) this.refusal = "";
    } catch (error) {
      if (!isTrouble(error)) throw error;
      if (asking === this.asking && error instanceof Refused) this.refusal = error.words;
    } finally {
      if (asking === this.asking) {
        this.isPaging = false;
        if (!this.stopping.signal.aborted) this.listener.onChange();
      }
    }
  }

  /** @param {AbortSignal} signal of the turn */
  async live(signal) {
    const { asking } = this;
    const giveBack = await takeSlot();
    try {
      if (signal.aborted || asking !== this.asking) return;
      if (giveBack === null) return await this.readOn();
      this.streaming = new AbortController();
      this.listener.onChange();
      const ended = await this.source.follow(this.filter, this.window.last, AbortSignal.any([signal, this.streaming.signal]),
        (line) => this.take(line));
      if (asking === this.asking && !this.streaming.signal.aborted) this.settle(ended);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (asking === this.asking) await this.readOn(); // there are too many streams
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
    if (fresh.length === 0) return;
    if (this.listener.isFollowing() || this.window.hasRoomFor(fresh)) {
      this.window.append(fresh);
    } else {
      // Somebody reads at the beginning: what is there stays, and the rest is fetched when it is wanted.
      this.window.hasLater = true;
      this.streaming?.abort();
    }
    this.listener.onChange();
  }

  /** @param {boolean} ended */
  settle(ended) {
    this.flush();
    if (!ended || this.window.hasLater) return;
    this.isComplete = true;
    clearTimeout(this.checking);
    this.checking = setTimeout(() => {
      if (this.isReady && !this.isPaging) void this.readOn();
    }, 1000 * LATE_SECONDS);
  }
}
