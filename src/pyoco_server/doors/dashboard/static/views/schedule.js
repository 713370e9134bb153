// One schedule: what it does and when, what comes next, what became of it, and what can be done with it.

import { act, confirm, mayAct } from "../lib/act.js";
import { get, Refused, send } from "../lib/api.js";
import { h, put } from "../lib/dom.js";
import { list, texts } from "../lib/fleet.js";
import { span, zonedTime } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { actButton, card, commandBox, facts, json, nothing, refill, since, until } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { textOf } from "../lib/run_facts.js";
import { haveSeconds } from "../lib/schedule_ticks.js";
import { lengthWords } from "../lib/schedule_words.js";
import { Region } from "./fleet_parts.js";
import { ScheduleHistory } from "./schedule_history.js";
import { labelLinks, marksOf, pathOf, runsOf, whatParts, whenParts } from "./schedule_parts.js";
import { ScheduleStrip } from "./schedule_strip.js";
import { triggerSchedule } from "./schedule_trigger.js";

/** @typedef {import("../lib/schedule_wire.js").Schedule} Schedule */
/** @typedef {import("../lib/schedule_wire.js").PreviewTick} PreviewTick */
/** @typedef {import("../lib/dom.js").Child} Child */

const POLL_SECONDS = 5;
const NEXT = 5;
const CELLS = 60;
const INSTANTS_SHOWN = 20;

/**
 * @param {import("../lib/router.js").Place} place
 * @returns {import("../panels.js").View}
 */
export function openSchedule(place) {
  const name = String(place.rest[0]);
  const view = new OneSchedule(name);
  return {
    element: view.element, title: name, close: () => view.poll.stop(),
    moved: (to) => to.panel === "schedules" && to.rest[0] === name,
  };
}

class OneSchedule {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
    this.path = pathOf(name);
    /** @type {Schedule | null} */
    this.schedule = null;
    this.marks = h("span", { class: "chips", role: "status" });
    this.actions = h("div", { class: "chips" });
    this.notices = h("div", { class: "stack" });
    this.definition = h("div", { class: "stack" });
    this.next = h("ol", { class: "schedule-next" });
    this.strip = new ScheduleStrip();
    this.history = new ScheduleHistory(this.path);
    this.region = new Region();
    this.body = [this.notices,
      h("div", { class: "schedule-top" },
        card(t("schedules.definition"), { actions: h("a", { class: "button", href: runsOf(name) }, t("schedules.runs")) }, this.definition),
        card(t("schedules.ticks"), {}, this.next)),
      this.strip.element, this.history.element, commandBox(`pyoco-client schedule ticks ${name}`)];
    this.element = h("div", { class: "view schedule" },
      h("a", { class: "run-back small", href: href("schedules") }, `← ${t("schedules.back")}`),
      h("div", { class: "view-head" },
        h("div", { class: "run-name" }, h("h1", { class: "budget-name" }, name), this.marks), this.actions),
      this.region.element);
    this.poll = poll(POLL_SECONDS, (signal) => this.region.guard(() => this.look(signal)));
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    try {
      const schedule = /** @type {Schedule} */ (await get(this.path, {}, signal));
      const [preview, ticks] = await Promise.all([
        get(`${this.path}/preview`, { n: NEXT }, signal), get(`${this.path}/ticks`, { limit: CELLS }, signal),
        this.history.look(schedule.timezone, signal)]);
      this.show(schedule, list(preview?.items));
      this.strip.show(list(ticks?.items), schedule.timezone);
      this.region.show("schedule", () => this.body);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      this.schedule = null;
      put(this.actions);
      put(this.marks);
      this.region.show("missing", () => [missing(this.name)]);
      this.poll.stop(); // another one of this name would have another history
    }
  }

  /**
   * @param {Schedule} schedule
   * @param {PreviewTick[]} preview
   */
  show(schedule, preview) {
    this.schedule = schedule;
    const { paused, pause_reason: reason, overdue, timezone: zone } = schedule;
    refill(this.marks, [paused, reason, overdue, schedule.waiting_ticks], () => marksOf(schedule));
    refill(this.actions, [paused], () => (mayAct ? this.offers(schedule) : []));
    refill(this.notices, [paused, reason, overdue], () => [
      overdue ? h("div", { class: "sync-note" }, h("p", null, icon("warning"), " ", t("schedules.overdue.why")), commandBox("pyoco-keeper")) : null,
      paused ? h("div", { class: "schedule-paused" }, h("p", null, icon("pause"), " ", t("schedules.paused.why")),
        reason ? h("p", { class: "run-long" }, t("schedules.paused.reason", { reason })) : null) : null]);
    const { next_ticks: _next, last_tick: _last, ...defined } = schedule;
    refill(this.definition, defined, () => definitionOf(schedule));
    refill(this.next, [preview, paused, zone], () => nextOf(preview, schedule));
  }

  /** @param {Schedule} schedule */
  offers({ paused }) {
    return [
      actButton(t("schedules.trigger"), async () => this.schedule && triggerSchedule(this.schedule, () => this.poll.soon()), { icon: "running" }),
      paused ? actButton(t("schedules.resume"), () => this.resume(), { icon: "repeat", kind: "primary" })
        : actButton(t("schedules.pause"), () => this.pause(), { icon: "pause" }),
      actButton(t("schedules.delete"), () => this.remove(), { icon: "trash", kind: "danger" }),
    ];
  }

  async pause() {
    const answer = await confirm({
      title: t("schedules.pause.title"), body: h("p", null, t("schedules.paused.why")), yes: t("schedules.pause"), ask: t("schedules.pause.ask"),
    });
    if (answer === null) return;
    await act(() => send("POST", `${this.path}/pause`, answer.text === "" ? {} : { reason: answer.text }), () => t("schedules.pause.done"));
    this.poll.soon();
  }

  async resume() {
    await act(() => send("POST", `${this.path}/resume`), () => t("schedules.resume.done"));
    this.poll.soon();
  }

  async remove() {
    const { name } = this;
    const sure = await confirm({
      title: t("schedules.delete.title"), yes: t("schedules.delete"), danger: true,
      body: [h("p", null, h("strong", null, name)), h("p", null, t("schedules.delete.note"))],
    });
    if (sure === null) return;
    const done = await act(() => send("DELETE", this.path), () => t("schedules.delete.done", { name }));
    if (done !== undefined && this.element.isConnected) location.hash = href("schedules");
  }
}

/** @param {string} name */
function missing(name) {
  return nothing(t("schedules.missing"), h("p", null, t("schedules.missing.why")),
    h("div", { class: "chips" }, h("a", { class: "button", href: href("schedules") }, t("schedules.back")),
      h("a", { class: "button", href: runsOf(name) }, t("schedules.runs"))));
}

/**
 * @param {Schedule} schedule
 * @returns {Child[]}
 */
function definitionOf(schedule) {
  const { what, timezone: zone, catch_up: missed } = schedule;
  const at = (/** @type {number | null} */ instant) => (typeof instant === "number" ? zonedTime(instant, zone) : null);
  const instants = list(schedule.when.at);
  return [
    facts([
      [t("schedules.what"), h("span", { class: "name-line" }, whatParts(schedule))],
      [t("schedules.when"), h("div", { class: "schedule-facts" }, whenParts(schedule), instants.slice(0, INSTANTS_SHOWN).map((each) =>
        h("span", { class: "small" }, at(each))), instants.length > INSTANTS_SHOWN ? "…" : null)],
      [t("schedules.tag"), textOf(what.tag)],
      [t("schedules.start_at"), at(schedule.start_at)],
      [t("schedules.end_at"), at(schedule.end_at)],
      [t("schedules.jitter"), schedule.jitter > 0 ? t("schedules.jitter.up_to", { span: Number.isInteger(schedule.jitter) ? lengthWords(schedule.jitter) : span(schedule.jitter) }) : null],
      [t("schedules.overlap"), wordFor("schedules.overlap", schedule.overlap)],
      [t("schedules.catch_up"), wordFor("schedules.catch_up", missed.policy, { span: lengthWords(missed.window) })],
      [t("schedules.labels"), schedule.labels.length > 0 ? h("span", { class: "chips" }, labelLinks(texts(schedule.labels))) : null],
      [t("schedules.created"), since(schedule.created_at)],
      [t("schedules.updated"), schedule.updated_at > schedule.created_at ? since(schedule.updated_at) : null],
      [t("schedules.updated_by"), textOf(schedule.updated_by)],
      [t("schedules.id"), h("code", { class: "small" }, schedule.id)],
    ]),
    ...given(what),
  ];
}

/**
 * What is given to its runs, with the templates.
 * @param {Record<string, unknown>} what
 * @returns {Child[]}
 */
function given(what) {
  return /** @type {const} */ (["params", "args", "inputs"]).filter((name) => Object.keys(Object(what[name] ?? {})).length > 0)
    .map((name) => h("div", { class: "stack" }, h("h3", { class: "small dim" }, t(`schedules.${name}`)), json(what[name])));
}

/**
 * @param {PreviewTick[]} preview
 * @param {Schedule} schedule
 * @returns {Child[]}
 */
function nextOf(preview, { paused, timezone: zone, jitter }) {
  if (preview.length === 0) return [h("li", { class: "dim" }, t("schedules.ticks.none"))];
  const seconds = haveSeconds(preview);
  return [
    paused ? h("li", { class: "dim small" }, t("schedules.ticks.paused")) : null,
    ...preview.map((each) => {
      const at = zonedTime(each.tick, zone, seconds);
      return h("li", null, h("span", { class: "number", title: each.local }, at), h("span", { class: "small dim" }, until(each.tick, each.local)),
        jitter > 0 ? h("span", { class: "small dim schedule-note" }, t("schedules.ticks.latest", { at: zonedTime(Math.round(each.latest_at), zone) })) : null,
        each.dst ? h("span", { class: "mark schedule-note" }, icon("warning"), " ", wordFor("schedules.dst", each.dst)) : null);
    }),
    h("li", { class: "small dim" }, zone),
  ];
}
