// One run as it changes: read once, then followed, for as long as it changes and the page is looked at. A browser with
// many such pages follows with few of them and asks again and again with the others: see `lib/slots.js`.

import { Refused, get, stream } from "../lib/api.js";
import { now } from "../lib/clock.js";
import { connection } from "../lib/connection.js";
import { t } from "../lib/i18n.js";
import { parseJson } from "../lib/numbers.js";
import { isTrouble, poll } from "../lib/poll.js";
import { isObject, isTerminal, waits } from "../lib/run_facts.js";
import { takeSlot } from "../lib/slots.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/**
 * @typedef {object} Listener
 * @property {(run: Run) => void} onRun      at each change and each heartbeat
 * @property {(run: Run | null) => void} onMissing the gateway knows no such run; as it was when it did
 * @property {(words: string) => void} onRefused it may be there, and we are not shown it; it may come all the same
 */

/** Why a run waits changes with every other run: asked for while it waits. */
const WAIT_SECONDS = 3;
/** Whether its worker lives is not part of the events. */
const WORKER_SECONDS = 10;
const BACK_OFF_MS = 400;
const BACK_OFF_MS_MAX = 15_000;
/** Both are told when they end; this is for a word that was lost. */
const WAIT_MS = 60_000;
/** A browser opens six connections to a server: pages that nobody looks at give theirs back, to those that are. */
const HIDDEN_MS = 2000;
/** While others have the streams: as often as that feels live, and each time perhaps one is free. */
const POLL_MS = 2500;
const SILENCE_MS = 20_000;
/** Not part of the stored run, so not of events: they stay from one question to the next. */
const ADDED = /** @type {const} */ (["worker_alive", "worker_heartbeat_at", "worker_tags", "worker_state", "worker_told_at"]);

export class RunFeed {
  /**
   * @param {string} id
   * @param {Listener} listener
   */
  constructor(id, listener) {
    this.path = `runs/${encodeURIComponent(id)}`;
    this.listener = listener;
    /** @type {Run | null} */
    this.run = null;
    this.lastEventId = "";
    this.stopping = new AbortController();
    /** @type {AbortController | null} */
    this.streaming = null;
    /** @type {import("../lib/poll.js").Poll | null} */
    this.asking = null;
    this.askedEvery = 0;
    /** @type {(() => void) | null} */
    this.wake = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.hiding = undefined;
    this.failures = 0;
    this.heardAt = 0;
    /** There was no place for a stream. */
    this.polls = false;
  }

  start() {
    const signal = this.stopping.signal;
    document.addEventListener("visibilitychange", () => this.onLook(), { signal });
    const unfollow = connection.follow((state) => {
      if (state === "locked") this.streaming?.abort(); // what came with a key that counts no more is not shown
      else if (state !== "gateway") this.wake?.();
    });
    signal.addEventListener("abort", unfollow, { once: true });
    void this.live();
  }

  stop() {
    this.stopping.abort();
    this.streaming?.abort();
    this.asking?.stop();
    clearTimeout(this.hiding);
    this.wake?.();
  }

  /** Until the run has ended and its last state was read, is gone, or nobody wants to know. */
  async live() {
    while (!this.stopping.signal.aborted) {
      try {
        if (!this.mustWait() && await this.turn()) return;
      } catch (error) {
        if (error instanceof Refused && this.isFinal(error)) return;
        if (!isTrouble(error)) reportError(error); // told, and no reason to stop
        this.failures += 1;
      }
      await this.rest();
    }
  }

  /** @returns {Promise<boolean>} true: nothing more to do */
  async turn() {
    await this.load();
    if (this.run === null) return false; // it came when nobody may see it
    if (isTerminal(this.run.status)) return true;
    const goesOn = await this.follow();
    if (this.polls) {
      this.failures = 0;
      return false;
    }
    this.failures += 1; // none of them counts once an event comes: a stream that brings none is not asked for at once
    const ended = isTerminal(this.run.status);
    if (!goesOn || ended) {
      await this.load(); // the last facts: events lack some
      return isTerminal(this.run.status);
    }
    return false;
  }

  /** @param {Refused} error */
  isFinal(error) {
    if (error.status === 404) {
      this.finish();
      this.listener.onMissing(this.run);
      return true;
    }
    if (error.status >= 500 || error.status === 429 || error.status === 401 || error.status === 403) {
      if (this.run === null) this.listener.onRefused(error.words);
      return false; // it may get better: another key, another moment
    }
    this.finish();
    this.listener.onRefused(error.words);
    return true;
  }

  async load() {
    const told = await get(this.path, { include: "records" }, this.stopping.signal);
    if (!isObject(told) || typeof told.status !== "string") throw new Refused(502, { detail: t("run.odd") });
    markTold(told);
    this.take(/** @type {Run} */ (/** @type {unknown} */ (told)));
  }

  /** @returns {Promise<boolean>} false: nothing more will come */
  async follow() {
    const giveBack = await takeSlot();
    if (this.stopping.signal.aborted) {
      giveBack?.();
      return true;
    }
    this.polls = giveBack === null;
    this.keepAsking();
    if (giveBack === null) return true;
    this.streaming = new AbortController();
    this.heardAt = Date.now();
    if (this.stopping.signal.aborted || this.mustWait()) this.streaming.abort(); // while it waited for its place
    try {
      return await stream(`${this.path}/watch`, { include: "records" }, {
        signal: this.streaming.signal, lastEventId: this.lastEventId, onEvent: (event) => this.onEvent(event),
      });
    } finally {
      this.streaming = null;
      giveBack();
    }
  }

  /** @param {import("../lib/sse.js").SentEvent} event */
  onEvent(event) {
    if (event.event !== "snapshot" && event.event !== "heartbeat") return;
    const told = parseJson(event.data);
    if (!isObject(told?.snapshot) || typeof told.snapshot.status !== "string") return;
    this.failures = 0;
    this.heardAt = Date.now();
    this.lastEventId = event.id;
    const snapshot = /** @type {Run} */ (/** @type {unknown} */ (told.snapshot));
    const before = this.run;
    if (before?.worker_id && before.worker_id === snapshot.worker_id) {
      for (const name of ADDED) Object.assign(snapshot, { [name]: before[name] });
    }
    if (before?.waiting && waits(snapshot)) snapshot.waiting = before.waiting;
    this.take(snapshot);
  }

  /** @param {Run} run */
  take(run) {
    // It came when nobody waited for it any more, or when nobody may see it.
    if (this.stopping.signal.aborted || connection.value === "locked") return;
    this.run = run;
    this.keepAsking();
    this.tell(run);
  }

  /** A defect of whoever listens does not end what others, and the next change, rely on. @param {Run} run */
  tell(run) {
    try {
      this.listener.onRun(run);
    } catch (error) {
      reportError(error);
    }
  }

  /** Ask for what events lack, as often as that changes. */
  keepAsking() {
    const run = this.run;
    const asksAnyway = this.polls || run === null || isTerminal(run.status);
    const every = asksAnyway ? 0 : waits(run) ? WAIT_SECONDS : WORKER_SECONDS;
    if (every === this.askedEvery) return;
    this.asking?.stop();
    this.askedEvery = every;
    let known = run !== null && (run.waiting !== undefined || run.worker_alive !== undefined); // just answered
    this.asking = every === 0 ? null : poll(every, async (signal) => {
      if (!known) await this.askMore(signal);
      known = false;
    });
  }

  /** @param {AbortSignal} signal */
  async askMore(signal) {
    // Events come every five seconds at least: a connection that is silent for longer is dead and does not know.
    if (this.streaming !== null && Date.now() - this.heardAt > SILENCE_MS) this.streaming.abort();
    const told = await get(this.path, {}, signal);
    const run = this.run;
    if (run === null || signal.aborted || !isObject(told) || told.worker_id !== run.worker_id) return;
    if (connection.value === "locked") return;
    markTold(told);
    for (const name of [...ADDED, "waiting"]) {
      if (name in told) Object.assign(run, { [name]: told[name] });
    }
    this.tell(run);
  }

  finish() {
    this.asking?.stop();
    this.asking = null;
  }

  /** Nobody looks, or no key is there. */
  mustWait() {
    return document.hidden || connection.value === "locked";
  }

  onLook() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.streaming?.abort(), HIDDEN_MS);
    else this.wake?.();
  }

  /** Longer after each failure; cut short when the connection has healed or the page is looked at again. */
  async rest() {
    const backOff = Math.min(BACK_OFF_MS_MAX, BACK_OFF_MS * 2 ** Math.min(this.failures, 8));
    const longest = this.polls ? Math.max(POLL_MS / 0.75, backOff) : backOff;
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, this.mustWait() ? WAIT_MS : longest * (0.5 + Math.random() / 2));
      this.wake = () => {
        clearTimeout(timer);
        resolve(undefined);
      };
    });
    this.wake = null;
  }
}

/** How its worker is was told just now. @param {Record<string, unknown>} told */
function markTold(told) {
  if (told.worker_alive !== undefined) told.worker_told_at = now();
}
