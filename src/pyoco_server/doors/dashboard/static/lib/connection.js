// Whether what the page shows can be true: one state for the whole page, found out by asking and healed by itself.

import { now } from "./clock.js";
import { Signal } from "./events.js";

/**
 * How the gateway is. ok: all is well. gateway: it does not answer. nats: it answers, but its lists cannot be true or
 * nothing can be written.
 * @typedef {"ok" | "gateway" | "nats"} Reach
 */
/**
 * The same, and `locked`: a key is needed, or the one we have is refused.
 * @typedef {Reach | "locked"} Connection
 */
/** What a gateway in the state `nats` said of itself. @typedef {"nats" | "index" | "store"} Trouble */

/** @type {Signal<Connection>} For everybody who asks the gateway. Only this module sets it. */
export const connection = new Signal(/** @type {Connection} */ ("ok"));

/** @type {Signal<Reach>} For the banner: a page without a key, too, has to say that the gateway is away. */
export const reach = new Signal(/** @type {Reach} */ ("ok"));

/** @type {Signal<Trouble>} Means something while `reach` is `nats`. */
export const trouble = new Signal(/** @type {Trouble} */ ("nats"));

let isLocked = false;

/** Why a key is asked for, while it is. @type {"missing" | "refused"} */
export let lockedFor = "missing";

/** @param {"missing" | "refused"} why */
export function lock(why) {
  if (isLocked) return;
  isLocked = true;
  lockedFor = why;
  connection.set("locked");
}

/** There is a key that was accepted. */
export function unlock() {
  isLocked = false;
  connection.set(reach.value);
}

/** When an answer with data last came: what is on the page is as old as this. */
export let lastAnswerAt = now();

/** When the gateway last said anything at all, by the clock that nobody sets. */
let heardAt = -Infinity;

/** Something came from the gateway, be it a refusal. */
export function heard() {
  heardAt = performance.now();
}

/** An answer with data, or a piece of one, has come. */
export function answered() {
  heard();
  lastAnswerAt = now();
  if (reach.value === "gateway") doubt(); // so it does answer
}

const ASK_SECONDS = 5;
const ASK_SECONDS_IN_TROUBLE = 1.5;
const DOUBT_SECONDS = 0.2;
/** The gateway itself gives up on NATS after two seconds. */
const ASK_TIMEOUT_MS = 4000;
/** One question that failed may be a cable that was moved: nobody is alarmed before the second. */
const FAILURES_MIN = 2;
/** A question that takes too long may have waited inside the browser, for one of its few connections. */
const HEARD_MS = 10_000;

/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
let dueAt = Infinity;
let asking = false;
let failures = 0;

/** Ask soon: somebody met trouble. However often it is called, the question comes in time. */
export function doubt() {
  if (!asking) askIn(DOUBT_SECONDS);
}

/** Ask for as long as the page is open: more often in trouble, not at all while nobody looks. */
export function keepAsking() {
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) doubt();
  });
  addEventListener("pageshow", doubt);
  addEventListener("online", doubt);
  doubt();
}

/**
 * Never later than what is due already: many doubts in a row would otherwise put the question off for ever.
 * @param {number} seconds
 */
function askIn(seconds) {
  const at = performance.now() + 1000 * seconds;
  if (at >= dueAt) return;
  clearTimeout(timer);
  dueAt = at;
  timer = setTimeout(ask, 1000 * seconds);
}

async function ask() {
  dueAt = Infinity;
  if (asking) return; // whoever asks now sees to the next question
  asking = true;
  try {
    if (!document.hidden) await askOnce();
  } finally {
    asking = false;
    askIn(failures === 1 ? DOUBT_SECONDS : reach.value === "ok" ? ASK_SECONDS : ASK_SECONDS_IN_TROUBLE);
  }
}

async function askOnce() {
  const beganAt = performance.now();
  try {
    const answer = await fetch("ready", { cache: "no-store", signal: AbortSignal.timeout(ASK_TIMEOUT_MS) });
    const told = await answer.json().catch(() => null);
    failures = 0;
    heard();
    if (!answer.ok) trouble.set(troubleIn(told));
    tell(answer.ok ? "ok" : "nats");
  } catch (error) {
    const isSlow = error instanceof DOMException && error.name === "TimeoutError";
    const answersOthers = heardAt > beganAt || (isSlow && performance.now() - heardAt < HEARD_MS);
    failures = answersOthers ? 1 : failures + 1; // then it is asked again at once, and nobody is alarmed
    if (failures >= FAILURES_MIN) tell("gateway");
  }
}

/**
 * @param {any} told the body of `GET /ready`
 * @returns {Trouble}
 */
export function troubleIn(told) {
  if (told?.nats !== true) return "nats"; // also of a proxy, which says nothing of this
  return told.store === false ? "store" : "index";
}

/** @param {Reach} found */
function tell(found) {
  reach.set(found);
  // A key that is missing stays missing, however well the gateway is.
  connection.set(isLocked ? "locked" : found);
}
