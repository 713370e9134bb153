// The only place that talks to the gateway. Every call carries the key, has an end, and says what went wrong as a type.

import { learn } from "./clock.js";
import { answered, doubt, heard, lock } from "./connection.js";
import { sentence } from "./i18n.js";
import { parseJson } from "./numbers.js";
import { currentKey, forgetKey } from "./session.js";
import { settings } from "./settings.js";
import { EventParser } from "./sse.js";

/** @typedef {Record<string, string | number | boolean | null | undefined>} Query */
/**
 * @typedef {object} Told  the body of an error
 * @property {unknown} [detail]
 * @property {string} [err_id]
 * @property {string} [message]
 * @property {string} [message_ja]
 * @property {{ loc?: (string | number)[], msg?: string }[]} [errors]
 */

/** The gateway said no. */
export class Refused extends Error {
  /**
   * @param {number} status
   * @param {Told} told
   */
  constructor(status, told) {
    super(`${status} ${told.err_id ?? ""}`);
    this.name = "Refused";
    this.status = status;
    this.told = told;
  }

  /** For people, in the language of the page. */
  get words() {
    const errors = Array.isArray(this.told.errors) ? this.told.errors : [];
    const problems = errors.map((each) => [each.loc?.join("."), each.msg].filter(Boolean).join(": "));
    const detail = typeof this.told.detail === "string" ? this.told.detail : "";
    const text = [sentence(this.told), ...(problems.length > 0 ? problems : [detail])].filter(Boolean).join(" · ");
    return `${text || `HTTP ${this.status}`}${this.told.err_id === undefined ? "" : ` (${this.told.err_id})`}`;
  }
}

/** The gateway did not answer: down, out of reach, or too slow. What was asked for may or may not have happened. */
export class Unreachable extends Error {}

const TIMEOUT_MS = 20_000;
/** A stream says something every five seconds. One that is silent for this long was cut off without a word. */
const SILENCE_MS = 20_000;
/** The gateway takes no change from a browser without it: pages of other origins cannot set it. */
const OF_OUR_PAGE = { "X-Pyoco-Request": "1" };
const KEY_ERRORS = new Set(["ERR-PYOCO-0014", "ERR-PYOCO-0015"]);

/**
 * @param {string} path relative: `runs/…`. Parts from users go through encodeURIComponent.
 * @param {Query} [query] what is null, undefined or empty is left out
 */
export function address(path, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  return text === "" ? path : `${path}?${text}`;
}

/**
 * @param {string} path
 * @param {Query} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} the answer's JSON; null for 204
 */
export async function get(path, query, signal) {
  return call(address(path, query), {}, signal);
}

/**
 * As `get`, for what is asked again and again: null when it is still what `tag` names.
 * @param {string} path
 * @param {Query} query
 * @param {string | null} tag the `tag` of the last answer to the same question
 * @param {AbortSignal} [signal]
 * @returns {Promise<{ answer: any, tag: string | null } | null>}
 */
export async function getChanged(path, query, tag, signal) {
  const key = currentKey();
  /** @type {Record<string, string>} */
  const headers = tag === null ? {} : { "If-None-Match": tag };
  const answer = await ask(address(path, query), { headers }, key, signal);
  if (answer.status === 304) {
    answered();
    return null;
  }
  return { tag: answer.headers.get("etag"), answer: await read(answer, key) };
}

/**
 * An answer that is no JSON, as text.
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<string>}
 */
export async function getText(path, signal) {
  const key = currentKey();
  const answer = await ask(path, {}, key, signal);
  if (!answer.ok) await read(answer, key);
  const text = await answer.text().catch(unanswered);
  answered();
  return text;
}

/**
 * Fetch NDJSON. `hasMore`: more lines follow. `isOff`: the gateway stores no logs.
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<{ lines: unknown[], hasMore: boolean, isOff: boolean }>}
 */
export async function getLines(path, signal) {
  const key = currentKey();
  const answer = await ask(path, {}, key, signal);
  if (!answer.ok) await read(answer, key);
  const text = await answer.text().catch(unanswered);
  answered();
  const lines = text.split("\n").filter((line) => line !== "").map((line) => JSON.parse(line));
  return { lines, hasMore: answer.headers.get("pyoco-log-more") === "true", isOff: answer.headers.get("pyoco-logs") === "off" };
}

/**
 * @param {"POST" | "PUT" | "PATCH" | "DELETE"} method
 * @param {string} path
 * @param {unknown} [body] sent as JSON; a text is JSON already, and sent as it is, and so is a form
 * @param {Query} [query]
 * @param {string} [onceKey] a fresh key: sent again under it, a submission is accepted once
 * @returns {Promise<any>}
 */
export async function send(method, path, body, query, onceKey) {
  /** @type {Record<string, string>} */
  const headers = { ...OF_OUR_PAGE };
  const isForm = body instanceof FormData;
  if (body !== undefined && !isForm) headers["Content-Type"] = "application/json";
  if (onceKey !== undefined) headers["Idempotency-Key"] = onceKey;
  const text = typeof body === "string" || isForm ? body : JSON.stringify(body);
  return call(address(path, query), { method, headers, ...(body === undefined ? {} : { body: text }) });
}

/**
 * Follow an event stream until it ends or `signal` says so. Resolves with false when nothing more will ever come, with
 * true when it was cut off, fell silent or ended: connect again. What `onEvent` throws is thrown.
 * @param {string} path
 * @param {Query} query
 * @param {{ signal: AbortSignal, lastEventId?: string, onEvent: (event: import("./sse.js").SentEvent) => void }} how
 * @returns {Promise<boolean>}
 */
export async function stream(path, query, how) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  const goesOn = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(), SILENCE_MS);
  };
  try {
    const key = currentKey();
    /** @type {Record<string, string>} */
    const more = how.lastEventId ? { "Last-Event-ID": how.lastEventId } : {};
    const signal = AbortSignal.any([how.signal, silence.signal]);
    const answer = await begin(address(path, query), { headers: withKey(key, more), signal, cache: "no-store" });
    if (answer.status === 204) return false;
    if (!answer.ok || answer.body === null) await read(answer, key);
    return await follow(/** @type {ReadableStream<Uint8Array>} */ (answer.body), goesOn, how.onEvent);
  } catch (error) {
    if (how.signal.aborted) return true;
    if (!silence.signal.aborted) throw error;
    doubt();
    return true;
  } finally {
    clearTimeout(timer);
  }
}

/**
 * @param {ReadableStream<Uint8Array>} body
 * @param {() => void} goesOn
 * @param {(event: import("./sse.js").SentEvent) => void} onEvent
 */
async function follow(body, goesOn, onEvent) {
  const reader = body.getReader();
  const parser = new EventParser();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const piece = await reader.read().catch(cutOff);
      if (piece.done) return true;
      goesOn();
      answered();
      for (const event of parser.feed(decoder.decode(piece.value, { stream: true }))) onEvent(event);
    }
  } finally {
    reader.cancel().catch(() => undefined); // nobody reads on, be it for a defect of whoever listens
  }
}

/**
 * A stream that broke is like one that ended.
 * @param {unknown} error
 * @returns {{ done: true, value: undefined }}
 */
function cutOff(error) {
  if (!(error instanceof TypeError)) throw error;
  doubt();
  return { done: true, value: undefined };
}

/**
 * Send a file with its progress, which `fetch` cannot tell.
 * @param {string} path
 * @param {FormData} form
 * @param {(share: number) => void} onProgress from 0 to 1
 * @param {AbortSignal} [signal]
 * @param {string | null} [key] of whoever gave the file
 * @returns {Promise<any>}
 */
export function upload(path, form, onProgress, signal, key = currentKey()) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const stop = () => request.abort();
    request.open("POST", path);
    for (const [name, value] of Object.entries(withKey(key, OF_OUR_PAGE))) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => {
      if (event.lengthComputable) onProgress(event.loaded / event.total);
    };
    request.onerror = () => {
      doubt();
      reject(new Unreachable());
    };
    request.onabort = () => reject(new DOMException("stopped", "AbortError"));
    request.onload = () => settle(() => judged(request.status, request.responseText, key), resolve, reject);
    request.onloadend = () => signal?.removeEventListener("abort", stop);
    signal?.addEventListener("abort", stop);
    request.send(form);
    if (signal?.aborted) stop();
  });
}

/**
 * A file, whole, with its progress: a link could not carry the key. It is held in memory, so the caller bounds its size.
 * @param {string} path
 * @param {(bytes: number) => void} onProgress
 * @param {AbortSignal} signal
 * @returns {Promise<Blob>}
 */
export async function download(path, onProgress, signal) {
  const key = currentKey();
  const answer = await begin(path, { headers: withKey(key), signal });
  if (!answer.ok || answer.body === null) await read(answer, key);
  const reader = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (answer.body).getReader();
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const pieces = [];
  for (let bytes = 0; ;) {
    const { done, value } = await reader.read().catch(unanswered); // cut off: an outage, or the gateway found it damaged
    if (done) break;
    pieces.push(value);
    bytes += value.length;
    onProgress(bytes);
  }
  answered();
  return new Blob(pieces, { type: "application/octet-stream" });
}

/**
 * Any request, for the page about the API: the answer as it is, whatever its status.
 * @param {string} method
 * @param {string} path
 * @param {Record<string, string>} headers
 * @param {BodyInit | null} body
 * @param {AbortSignal} signal
 */
export function sendAsIs(method, path, headers, body, signal) {
  const more = { ...OF_OUR_PAGE, ...headers };
  return begin(path, { method, headers: withKey(currentKey(), more), body, signal, cache: "no-store" });
}

/**
 * @template T
 * @param {() => T} work
 * @param {(done: T) => void} resolve
 * @param {(error: unknown) => void} reject
 */
function settle(work, resolve, reject) {
  try {
    resolve(work());
  } catch (error) {
    reject(error);
  }
}

/**
 * @param {string | null} key
 * @param {Record<string, string>} [more]
 * @returns {Record<string, string>}
 */
function withKey(key, more = {}) {
  return key === null ? more : { ...more, [settings.keyHeader]: key };
}

/**
 * @param {string} url
 * @param {{ method?: string, headers?: Record<string, string>, body?: string | FormData }} init
 * @param {AbortSignal} [signal]
 */
async function call(url, init, signal) {
  const key = currentKey();
  return read(await ask(url, init, key, signal), key);
}

/**
 * @param {string} url
 * @param {{ method?: string, headers?: Record<string, string>, body?: string | FormData }} init
 * @param {string | null} key
 * @param {AbortSignal} [signal]
 */
function ask(url, init, key, signal) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const end = signal ? AbortSignal.any([signal, timeout]) : timeout;
  return begin(url, { ...init, headers: withKey(key, init.headers), cache: "no-store", signal: end });
}

/**
 * @param {string} url
 * @param {RequestInit} init
 */
async function begin(url, init) {
  const answer = await fetch(url, init).catch(unanswered);
  heard();
  learn(answer.headers.get("date"));
  return answer;
}

/**
 * @param {Response} answer
 * @param {string | null} key what it was asked with
 */
async function read(answer, key) {
  return judged(answer.status, await answer.text().catch(unanswered), key);
}

/**
 * @param {unknown} error
 * @returns {never}
 */
function unanswered(error) {
  if (error instanceof DOMException && error.name === "AbortError") throw error;
  doubt();
  throw new Unreachable();
}

/**
 * @param {number} status
 * @param {string} text
 * @param {string | null} key
 */
function judged(status, text, key) {
  const [isJson, told] = parsed(text);
  if (status < 200 || status > 299) throw refused(status, told instanceof Object ? told : {}, key);
  if (!isJson) throw new Refused(status, told); // a proxy's page, say its login, in place of our answer
  answered();
  return told;
}

/**
 * @param {number} status
 * @param {Told} told
 * @param {string | null} key
 */
function refused(status, told, key) {
  // An answer to an older key says nothing of the one that was entered since.
  if (KEY_ERRORS.has(told.err_id ?? "") && key === currentKey()) {
    forgetKey();
    lock(key === null ? "missing" : "refused");
  } else if (status >= 500) {
    doubt();
  }
  return new Refused(status, told);
}

/**
 * @param {string} text
 * @returns {[isJson: boolean, told: any]} nothing at all is null
 */
function parsed(text) {
  try {
    return [true, text === "" ? null : parseJson(text)];
  } catch {
    return [false, { detail: text.slice(0, 200) }];
  }
}
