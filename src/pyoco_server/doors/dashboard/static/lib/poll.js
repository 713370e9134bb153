// Asking again and again, politely: one question at a time, none while nobody looks, no key is there or nobody answers.

import { Refused, Unreachable } from "./api.js";
import { connection } from "./connection.js";

/** @typedef {{ soon: () => void, stop: () => void }} Poll */

/**
 * Calls `work` at once, and again `seconds` after it has ended; at once when the page is looked at again or the
 * connection has healed. Trouble that the connection tells of anyway is passed over; a defect is told once per turn and
 * does not end it. `work` never runs twice at a time; after `stop` it is not called again, and its signal is aborted.
 * @param {number} seconds
 * @param {(signal: AbortSignal) => Promise<unknown>} work
 * @returns {Poll}
 */
export function poll(seconds, work) {
  const stopping = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let busy = false;
  let again = false;

  async function turn() {
    clearTimeout(timer);
    if (stopping.signal.aborted) return;
    if (busy) {
      again = true;
      return;
    }
    if (!isUseful()) {
      schedule();
      return;
    }
    busy = true;
    try {
      await work(stopping.signal);
    } catch (error) {
      if (!isTrouble(error)) reportError(error);
    } finally {
      busy = false;
      schedule();
    }
  }

  function schedule() {
    clearTimeout(timer);
    if (stopping.signal.aborted) return;
    timer = setTimeout(turn, again ? 0 : seconds * 1000);
    again = false;
  }

  const onVisible = () => {
    if (!document.hidden) void turn();
  };
  document.addEventListener("visibilitychange", onVisible, { signal: stopping.signal });
  let before = connection.value;
  const unfollow = connection.follow((state) => {
    if (state === "ok" && before !== "ok") void turn();
    before = state;
  });
  void turn();
  return {
    soon: () => void turn(),
    stop: () => {
      unfollow();
      stopping.abort();
      clearTimeout(timer);
    },
  };
}

/** A gateway that does not answer is asked by `connection.js` alone, and everybody hears of its return from there. */
function isUseful() {
  return !document.hidden && connection.value !== "locked" && connection.value !== "gateway";
}

/**
 * Whether the user has been told, or will be, by the state of the connection.
 * @param {unknown} error
 */
export function isTrouble(error) {
  return error instanceof Refused || error instanceof Unreachable ||
    (error instanceof DOMException && (error.name === "AbortError" || error.name === "TimeoutError"));
}
