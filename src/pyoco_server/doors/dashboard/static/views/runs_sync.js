// Keeps a list of runs true: loads as far as somebody looks, asks for changes, and now and then for everything again.

import { Refused, get, getChanged } from "../lib/api.js";
import { now } from "../lib/clock.js";
import { isTrouble, poll } from "../lib/poll.js";
import { lastingPart } from "../lib/run_filter.js";
import { readRun } from "../lib/run_list.js";
import { currentKey } from "../lib/session.js";

/** @typedef {import("../lib/run_list.js").RunList} RunList */
/** @typedef {import("../lib/wire.js").RunPage} RunPage */
/**
 * @typedef {object} Looker  the one who shows the list
 * @property {() => { rows: number, ids: Iterable<string> }} needs how many rows from the top on, and which others
 * @property {(change: () => { newer: number }) => void} apply make the change, and show it
 * @property {() => void} tell the state of the sync has changed
 */

const PAGE = 200;
/** A screen that is looked at: what happens is seen at once, and a quiet list costs one small question. */
const REFRESH_SECONDS = 2;
const RELOAD_SECONDS = 55; // at least every 60 (FLOW-191), with time for the question itself
/** FLOW-190: clocks of gateways and workers differ. */
const OVERLAP_SECONDS = 5;
/** Changes that fill more pages than this are a burst: reading the list again is cheaper than reading the changes. */
const BURST_PAGES = 5;
const BURST_SECONDS = 10;

export class RunSync {
  /**
   * @param {RunList} list
   * @param {Looker} looker
   * @param {string} [include] what else every run is to be shown with
   */
  constructor(list, looker, include) {
    this.list = list;
    this.include = include;
    this.looker = looker;
    /** @type {string | null} where the next page begins */
    this.cursor = null;
    this.loaded = false;
    this.key = currentKey();
    /** @type {number | null} when an answer last came */
    this.at = null;
    /** @type {Refused | null} the gateway does not give this list */
    this.refused = null;
    this.loadingMore = false;
    /** The question itself is wrong, by hand in the address: the same again would get the same answer. */
    this.hopeless = false;
    /** @type {number | null} the newest change that was heard of, in whatever status */
    this.newest = null;
    /** @type {number | null} the top of the list before a walk that is not at its end: its pages come newest first */
    this.topBefore = null;
    this.reloadAt = 0;
    this.burstAt = 0;
    /** @type {{ since: number, tag: string | null } | null} what the last question for changes was answered with */
    this.known = null;
    /** @type {{ since: number, tag: string | null } | null} the same, of an answer that may not be shown yet */
    this.heard = null;
    this.stopping = new AbortController();
    /** @type {Promise<unknown>} One question at a time: the later answer is the true one. */
    this.lane = Promise.resolve();
  }

  start() {
    this.poll = poll(REFRESH_SECONDS, () => this.queue(() => this.turn()));
  }

  stop() {
    this.poll?.stop();
    this.stopping.abort();
  }

  /** Something was done: look at once. */
  soon() {
    this.hopeless = false;
    this.poll?.soon();
  }

  /** Somebody has scrolled near the end of what is loaded. */
  async more() {
    if (this.loadingMore || this.cursor === null || this.list.full || !this.loaded) return;
    this.loadingMore = true;
    this.looker.tell();
    try {
      await this.queue(() => this.nextPage());
    } catch (error) {
      if (!isTrouble(error)) throw error;
    } finally {
      this.loadingMore = false;
      if (!this.stopping.signal.aborted) this.looker.tell();
    }
  }

  /**
   * @template T
   * @param {() => Promise<T>} work
   * @returns {Promise<T>}
   */
  queue(work) {
    const mine = this.lane.then(work);
    this.lane = mine.catch(() => undefined);
    return mine;
  }

  async turn() {
    if (this.hopeless) return;
    if (this.key !== currentKey()) this.forget();
    try {
      if (!this.loaded || this.newest === null || performance.now() >= this.reloadAt) await this.reload();
      else await this.refresh();
      this.refused = null;
    } catch (error) {
      if (error instanceof Refused && error.status < 500) this.refused = error;
      this.hopeless = error instanceof Refused && error.status === 422;
      throw error;
    } finally {
      if (!this.stopping.signal.aborted) this.looker.tell();
    }
  }

  /** Another key opens another tenant's runs: nothing of the one before may stay. */
  forget() {
    this.key = currentKey();
    this.loaded = false;
    this.cursor = null;
    this.topBefore = null;
    this.known = null;
    this.looker.apply(() => ({ newer: 0, gone: this.list.keepOnly(new Set()) }));
  }

  /** FLOW-189, FLOW-191: walk from the first page as far as somebody looks; what was not met is no longer there. */
  async reload() {
    const needs = this.looker.needs();
    this.topBefore ??= this.list.top;
    const reach = this.list.reach(needs.rows, needs.ids) - OVERLAP_SECONDS;
    const mark = this.list.filter.status === undefined ? null : await this.newestOfAll();
    /** @type {Set<string>} */
    const seen = new Set();
    /** @type {string | null} */
    let cursor = null;
    for (let first = true; ; first = false) {
      const askedAt = now();
      const page = await this.page({ ...this.list.filter }, cursor);
      for (const item of page.items) seen.add(item.run_id);
      if (first) this.newest = mark ?? newestOf(page, askedAt);
      cursor = page.next_cursor;
      const oldest = Math.min(...page.items.map((item) => item.updated_at));
      const enough = cursor === null || seen.size >= this.list.rowsMax || (seen.size >= needs.rows && !(oldest > reach));
      this.looker.apply(() => {
        const change = this.list.merge(page.items, /** @type {number} */ (this.topBefore));
        if (enough) this.list.keepOnly(seen);
        return change;
      });
      if (enough) break;
    }
    this.topBefore = null;
    this.cursor = cursor;
    this.loaded = true;
    this.reloadAt = performance.now() + RELOAD_SECONDS * 1000;
  }

  /** FLOW-190, FLOW-250. Asked without the status: a run that has left it is told of, too, and leaves the list. */
  async refresh() {
    const since = Math.max(0, /** @type {number} */ (this.newest) - OVERLAP_SECONDS);
    const query = { ...lastingPart(this.list.filter), updated_after: since };
    const pagesMax = Math.min(BURST_PAGES, Math.max(1, Math.ceil(this.looker.needs().rows / PAGE)));
    /** @type {import("../lib/wire.js").RunSummary[]} */
    const items = [];
    /** @type {string | null} */
    let cursor = null;
    let newest = this.newest;
    for (let pages = 0; pages === 0 || (cursor !== null && pages < pagesMax); pages += 1) {
      const askedAt = now();
      /** @type {RunPage | null} */
      const page = pages === 0 ? await this.changes(query) : await this.page(query, cursor);
      if (page === null) return; // nothing has changed anywhere: the overlap need not be read once more
      if (pages === 0) newest = newestOf(page, askedAt) ?? newest;
      items.push(...page.items);
      cursor = page.next_cursor;
    }
    if (cursor !== null && (pagesMax === 1 || performance.now() - this.burstAt > BURST_SECONDS * 1000)) {
      this.burstAt = performance.now();
      await this.reload();
      this.known = this.heard; // what was loaded after it shows at least as much
      return;
    }
    const top = (this.topBefore ??= this.list.top);
    this.looker.apply(() => this.list.merge(items, top));
    if (cursor !== null) return; // there are changes we have not read: ask from the same instant
    this.newest = newest;
    this.topBefore = null;
    this.known = this.heard;
  }

  /**
   * The first page of what changed, or null when no run of the gateway has.
   * @param {{ updated_after: number }} query
   * @returns {Promise<RunPage | null>}
   */
  async changes(query) {
    const since = query.updated_after;
    const tag = this.known?.since === since ? this.known.tag : null;
    const found = await getChanged("runs", { ...query, include: this.include, envelope: true, limit: PAGE }, tag, this.stopping.signal);
    this.stopping.signal.throwIfAborted();
    this.at = now();
    if (found === null) return null;
    this.heard = { since, tag: found.tag };
    return readPage(found.answer);
  }

  async nextPage() {
    if (this.cursor === null) return;
    const page = await this.page({ ...this.list.filter }, this.cursor);
    this.cursor = page.next_cursor;
    this.looker.apply(() => ({ ...this.list.merge(page.items), newer: 0 }));
  }

  /**
   * With a status, the list itself does not say how new the newest change is.
   * @returns {Promise<number | null>}
   */
  async newestOfAll() {
    const askedAt = now();
    return newestOf(await this.page(lastingPart(this.list.filter), null, 1), askedAt);
  }

  /**
   * @param {import("../lib/api.js").Query} query
   * @param {string | null} cursor
   * @param {number} [limit]
   * @returns {Promise<RunPage>}
   */
  async page(query, cursor, limit = PAGE) {
    const answer = await get("runs", { ...query, include: this.include, envelope: true, limit, cursor }, this.stopping.signal);
    this.stopping.signal.throwIfAborted();
    this.at = now();
    return readPage(answer);
  }
}

/**
 * @param {any} answer
 * @returns {RunPage}
 */
function readPage(answer) {
  const items = Array.isArray(answer?.items) ? answer.items : [];
  return { items: items.filter((/** @type {unknown} */ item) => readRun(item)), next_cursor: answer?.next_cursor ?? null };
}

/**
 * The newest change in a page, and never later than it was asked for: a worker whose clock is fast tells of changes yet
 * to come, and asking for what is newer than those would hide all others until then.
 * @param {RunPage} page
 * @param {number} askedAt
 * @returns {number | null}
 */
function newestOf(page, askedAt) {
  return page.items.length === 0 ? null : Math.min(askedAt, Math.max(...page.items.map((item) => item.updated_at)));
}
