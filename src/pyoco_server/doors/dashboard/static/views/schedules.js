// Everything that runs by the clock: what, when, when next, and what became of it the last time.

import { get } from "../lib/api.js";
import { ticks } from "../lib/clock.js";
import { h, put, write } from "../lib/dom.js";
import { list, texts } from "../lib/fleet.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { KeyedList } from "../lib/keyed.js";
import { actButton, button, commandBox, nothing, refill, since } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { isTerminal } from "../lib/run_facts.js";
import { tickWords } from "../lib/schedule_ticks.js";
import { afterTyping, cell, Region, replacePlace, rowsHead } from "./fleet_parts.js";
import { openSchedule } from "./schedule.js";
import { labelLinks, marksOf, nextParts, outcomeBadge, pathOf, whatParts, whenParts } from "./schedule_parts.js";

/** @typedef {import("../lib/schedule_wire.js").Schedule} Schedule */
/** @typedef {import("../lib/router.js").Place} Place */

const POLL_SECONDS = 5;
const PAGE = 50;
const PAGES_MAX = 20;
/** Runs whose status is asked for at one turn; the rest follows at the next ones. */
const ASKED_MAX = 10;
const STATES = /** @type {const} */ (["all", "active", "paused"]);
/** @typedef {{ label: string | null, paused: "true" | "false" | null }} Asked */

/**
 * @param {Place} place
 * @returns {import("../panels.js").View}
 */
export function openSchedules(place) {
  if (place.rest.length > 0) return openSchedule(place);
  const view = new Schedules(readAsked(place));
  return { element: view.element, moved: (to) => view.moved(to), close: () => view.close() };
}

/**
 * @param {Place} place
 * @returns {Asked}
 */
function readAsked(place) {
  const paused = place.query.get("paused");
  return { label: place.query.get("label") || null, paused: paused === "true" || paused === "false" ? paused : null };
}

class Schedules {
  /** @param {Asked} asked */
  constructor(asked) {
    this.asked = asked;
    this.pages = 1;
    /** @type {Map<string, string>} of runs that have ended */
    this.ended = new Map();
    this.summary = h("p", { class: "summary" });
    this.region = new Region();
    this.more = h("div", { class: "budgets-more" });
    /** @type {KeyedList<Schedule>} */
    this.list = new KeyedList(h("div", { class: "row-list", role: "list" }), (schedule) => String(schedule.name),
      (schedule) => new ScheduleRow(String(schedule.name)));
    this.typing = afterTyping((text) => this.relabel(text));
    this.field = h("input", {
      type: "search", maxlength: "128", autocomplete: "off", spellcheck: "false", placeholder: t("schedules.filter.any"),
      ...this.typing.listen,
    });
    this.chips = STATES.map((state) => h("button", {
      type: "button", class: "chip", onclick: () => this.go({ paused: pausedOf(state) }),
    }, t(`schedules.filter.${state}`)));
    this.drawFilters();
    this.element = h("div", { class: "view schedules" },
      h("div", { class: "view-head" }, h("h1", null, t("schedules.title")), this.summary),
      h("div", { class: "filters" },
        h("div", { class: "chips", role: "group", "aria-label": t("schedules.filter.state") }, this.chips),
        h("label", { class: "filter-field" }, h("span", { class: "small dim" }, t("schedules.filter.label")), this.field)),
      this.region.element, this.more, commandBox("pyoco-client schedule list"));
    this.poll = poll(POLL_SECONDS, (signal) => this.region.guard(() => this.look(signal)));
    this.unfollow = ticks.follow(() => this.tick());
  }

  close() {
    this.poll.stop();
    this.typing.cancel();
    this.unfollow();
  }

  /** @param {Place} place */
  moved(place) {
    if (place.panel !== "schedules" || place.rest.length > 0) return false;
    this.asked = readAsked(place);
    this.pages = 1;
    this.typing.cancel();
    this.drawFilters();
    this.poll.soon();
    return true;
  }

  drawFilters() {
    this.field.value = this.asked.label ?? "";
    this.chips.forEach((chip, at) => chip.setAttribute("aria-pressed", String(pausedOf(STATES[at] ?? "all") === this.asked.paused)));
  }

  /** @param {Partial<Asked>} change */
  go(change) {
    this.typing.settle();
    location.hash = href("schedules", [], { ...this.asked, ...change });
  }

  /** @param {string} text */
  relabel(text) {
    if ((this.asked.label ?? "") === text) return;
    this.asked = { ...this.asked, label: text || null };
    replacePlace(href("schedules", [], this.asked)); // who types is on the way: each letter is no place to go back to
    this.pages = 1;
    this.poll.soon();
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    const { asked } = this;
    /** @type {Schedule[]} */
    const found = [];
    /** @type {string | null} */
    let cursor = "";
    for (let page = 0; page < this.pages && cursor !== null; page += 1) {
      const answer = await get("schedules", { ...asked, limit: PAGE, cursor }, signal);
      found.push(...list(answer?.items));
      cursor = typeof answer?.next_cursor === "string" ? answer.next_cursor : null;
    }
    await this.askStatuses(found, signal);
    if (asked === this.asked) this.show(found, cursor === null);
  }

  /**
   * A list does not tell how the last runs stand. Those that have ended are asked for once.
   * @param {Schedule[]} found changed in place
   * @param {AbortSignal} signal
   */
  async askStatuses(found, signal) {
    const open = found.filter(({ last_tick: last }) => last?.run_id && last.run_status === undefined && !this.ended.has(last.run_id));
    const names = new Set(open.slice(0, ASKED_MAX).map((each) => each.name));
    const told = await Promise.allSettled([...names].map((name) => get(pathOf(name), {}, signal)));
    for (const each of told) if (each.status === "fulfilled") this.learn(each.value, found);
    for (const { last_tick: last } of found) {
      const status = this.ended.get(last?.run_id ?? "");
      if (last && status !== undefined) last.run_status = status;
    }
  }

  /**
   * @param {Schedule} told
   * @param {Schedule[]} found
   */
  learn(told, found) {
    const at = found.findIndex((each) => each.name === told?.name);
    if (at >= 0) found[at] = told;
    const { run_id: run, run_status: status } = told?.last_tick ?? {};
    if (run && status && isTerminal(status)) this.ended.set(run, status);
  }

  /**
   * @param {Schedule[]} found
   * @param {boolean} isAll
   */
  show(found, isAll) {
    const kept = new Set(found.map((each) => each.last_tick?.run_id ?? ""));
    for (const run of this.ended.keys()) if (!kept.has(run)) this.ended.delete(run);
    const isNarrowed = this.asked.label !== null || this.asked.paused !== null;
    write(this.summary, found.length === 0 ? "" : t(isAll ? "schedules.count" : "schedules.count.more", { n: count(found.length) }));
    if (found.length === 0) this.region.show(isNarrowed ? "none" : "nothing", () => [isNarrowed ? noneFits() : empty()]);
    else this.region.show("list", () => [h("div", { class: "rows schedules-rows" }, rowsHead([
      t("schedules.name"), t("schedules.what"), t("schedules.when"), t("schedules.next"), t("schedules.last"),
    ]), this.list.element)]);
    this.list.show(found);
    const offers = !isAll && this.pages < PAGES_MAX;
    if (offers !== (this.more.childElementCount > 0)) {
      put(this.more, offers ? actButton(t("schedules.more"), () => this.readOn(), { icon: "down" }) : null);
    }
  }

  async readOn() {
    this.pages += 1;
    this.poll.soon();
  }

  /** A tick that has passed gives way to the one after it. */
  tick() {
    for (const row of this.list.rows.values()) /** @type {ScheduleRow} */ (row).tick();
  }
}

/** @param {typeof STATES[number]} state */
function pausedOf(state) {
  return state === "all" ? null : state === "paused" ? "true" : "false";
}

function noneFits() {
  return nothing(t("schedules.none.fits"), button(t("schedules.none.clear"), () => {
    location.hash = href("schedules");
  }));
}

function empty() {
  return nothing(t("schedules.none"), h("p", { class: "prose" }, t("schedules.none.how")),
    commandBox('pyoco-client schedule create nightly --cron "0 6 * * *" --timezone Asia/Tokyo --flow my_flow'));
}

class ScheduleRow {
  /** @param {string} name */
  constructor(name) {
    /** @type {Schedule | null} */
    this.schedule = null;
    this.marks = h("span", { class: "chips" });
    this.labels = h("span", { class: "chips" });
    this.what = cell(t("schedules.what"), "what");
    this.when = cell(t("schedules.when"), "when");
    this.next = cell(t("schedules.next"), "next");
    this.last = cell(t("schedules.last"), "last");
    this.element = h("div", { class: "row", role: "listitem", "data-name": name }, h("div", { class: "row-line" },
      h("div", { class: "cell cell-name" }, h("a", { class: "queue-tag", href: href("schedules", [name]) }, name), this.marks, this.labels),
      this.what.element, this.when.element, this.next.element, this.last.element));
  }

  /** @param {Schedule} schedule */
  update(schedule) {
    this.schedule = schedule;
    const { last_tick: last, paused, pause_reason: reason, overdue, waiting_ticks: waiting, timezone: zone } = schedule;
    this.element.classList.toggle("bad", overdue);
    refill(this.marks, [paused, reason, overdue, waiting], () => [
      ...marksOf(schedule), paused && reason ? h("span", { class: "small dim clip" }, reason) : null]);
    refill(this.labels, schedule.labels, () => labelLinks(texts(schedule.labels)));
    refill(this.what.value, schedule.what, () => whatParts(schedule));
    refill(this.when.value, [schedule.when, zone], () => whenParts(schedule));
    refill(this.last.value, [last, zone], () => (last ? [outcomeBadge(last, tickWords(last, zone)), h("span", { class: "small dim" }, since(last.handled_at))]
      : [h("span", { class: "dim" }, t("schedules.never"))]));
    this.tick();
  }

  tick() {
    if (this.schedule !== null) refill(this.next.value, ...nextParts(this.schedule));
  }
}
