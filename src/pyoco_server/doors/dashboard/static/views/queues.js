// What waits, by tag: how much, for how long, and whether anybody takes it.

import { get } from "../lib/api.js";
import { h, write } from "../lib/dom.js";
import { growth, list, whole } from "../lib/fleet.js";
import { count, span } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { KeyedList } from "../lib/keyed.js";
import { commandBox, lasting, nothing, refill, shellWord } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { href } from "../lib/router.js";
import { cell, Meter, Region, rowsHead } from "./fleet_parts.js";

/** @typedef {import("../lib/wire.js").Queue} Queue */

/** Depths are kept by the gateway and not counted for us, so asking is cheap; ages go on by themselves in between. */
const POLL_SECONDS = 5;

/**
 * @param {import("../lib/router.js").Place} _place
 * @returns {import("../panels.js").View}
 */
export function openQueues(_place) {
  const view = new Queues();
  return { element: view.element, close: () => view.poll.stop() };
}

class Queues {
  constructor() {
    this.summary = h("p", { class: "summary" });
    this.region = new Region();
    /** Priced runs wait for no tag. */
    this.packs = h("p", { class: "queues-packs", hidden: true });
    this.greatest = { depth: 0, age: 0 };
    /** @type {KeyedList<Queue>} */
    this.list = new KeyedList(h("div", { class: "row-list", role: "list" }), (queue) => String(queue.tag),
      (queue) => new QueueRow(String(queue.tag), this.greatest));
    this.element = h("div", { class: "view queues" },
      h("div", { class: "view-head" }, h("h1", null, t("queues.title")), this.summary),
      this.region.element, this.packs,
      commandBox("pyoco-client queues --output table"));
    this.poll = poll(POLL_SECONDS, (signal) => this.region.guard(() => this.look(signal)));
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    const answer = await get("queues", {}, signal);
    /** @type {Queue[]} */
    const items = list(answer?.items);
    const packs = whole(answer?.packs?.depth);
    this.packs.hidden = packs === 0;
    refill(this.packs, packs, () => (packs === 0 ? [] : [
      h("a", { href: href("runs", [], { kind: "pack", status: "PENDING" }) }, t("queues.packs", { n: count(packs) })),
    ]));
    const waiting = items.reduce((sum, queue) => sum + whole(queue.depth), 0);
    this.greatest.depth = Math.max(0, ...items.map((queue) => whole(queue.depth)));
    this.greatest.age = Math.max(0, ...items.map((queue) => whole(queue.oldest_age_seconds)));
    write(this.summary, items.length === 0 ? "" : waiting === 0 ? t("queues.calm")
      : t("queues.waiting", { n: count(waiting), tags: count(items.filter((queue) => whole(queue.depth) > 0).length) }));
    if (items.length === 0) this.region.show("nothing", () => [empty()]);
    else this.region.show("list", () => [h("div", { class: "rows queues-rows" }, rowsHead([
      t("queues.tag"), t("queues.depth"), t("queues.oldest"), t("queues.growth"), t("queues.drain"), t("queues.served"),
    ]), this.list.element)]);
    this.list.show(items);
  }
}

function empty() {
  return nothing(t("queues.none"), h("p", null, t("queues.none_how")),
    commandBox("pyoco-worker --flow-resolver my_flows:resolve"),
    commandBox("pyoco-client submit --flow-name my_flow"));
}

class QueueRow {
  /**
   * @param {string} tag
   * @param {{ depth: number, age: number }} greatest of all queues: what bars are measured by
   */
  constructor(tag, greatest) {
    this.tag = tag;
    this.greatest = greatest;
    this.depth = new Meter("wait");
    this.age = new Meter("age");
    this.slots = new Meter("slots");
    this.growth = cell(t("queues.growth"), "growth");
    this.drain = cell(t("queues.drain"), "drain");
    this.workers = h("a", { class: "small", href: href("workers", [], { tag }) });
    this.warning = h("div", { class: "row-warning" });
    this.warning.hidden = true;
    const runs = href("runs", [], { tag, status: "PENDING" });
    this.element = h("div", { class: "row", role: "listitem" },
      h("div", { class: "row-line" },
        h("div", { class: "cell cell-name" }, h("a", { class: "queue-tag", href: runs, title: t("queues.runs", { tag }) }, tag)),
        cell(t("queues.depth"), "depth", this.depth.element).element,
        cell(t("queues.oldest"), "oldest", this.age.element).element,
        this.growth.element, this.drain.element,
        cell(t("queues.served"), "served", this.slots.element, this.workers).element),
      this.warning);
  }

  /** @param {Queue} queue */
  update(queue) {
    const depth = whole(queue.depth);
    const age = whole(queue.oldest_age_seconds);
    const workers = whole(queue.workers_alive);
    this.depth.show(depth, this.greatest.depth, count(depth));
    this.age.show(age, this.greatest.age, null);
    refill(this.age.text, queue.oldest_at ?? null, () => [lasting(queue.oldest_at, null)]);
    refill(this.growth.value, growth(queue), () => growthParts(queue));
    refill(this.drain.value, [queue.eta_seconds, queue.drained_per_minute, depth], () => drainParts(queue));
    this.slots.show(whole(queue.slots_busy), whole(queue.slots), `${count(whole(queue.slots_busy))} / ${count(whole(queue.slots))}`);
    write(this.workers, t("queues.workers", { n: count(workers) }));
    const alone = workers === 0 && depth > 0;
    this.warning.hidden = !alone;
    this.element.classList.toggle("bad", alone);
    refill(this.warning, alone, () => (alone ? [
      h("p", { class: "bad-word" }, icon("danger"), " ", t("queues.nobody", { tag: this.tag })),
      commandBox(`pyoco-worker --flow-resolver MODULE:CALLABLE --tags ${shellWord(this.tag)}`),
    ] : []));
  }
}

/**
 * @param {Queue} queue
 * @returns {import("../lib/dom.js").Child[]}
 */
function growthParts(queue) {
  const { way, by } = growth(queue);
  if (way === "unknown") return [h("span", { class: "dim", title: t("queues.growth_unknown_title") }, t("queues.growth_unknown"))];
  if (way === "same") return [h("span", { class: "dim" }, `→ ${t("queues.same")}`)];
  return [h("span", { class: `growth ${way}` }, `${way === "up" ? "↑" : "↓"} ${t(`queues.${way}`, { n: count(by) })}`)];
}

/**
 * @param {Queue} queue
 * @returns {import("../lib/dom.js").Child[]}
 */
function drainParts(queue) {
  const pace = typeof queue.drained_per_minute === "number"
    ? h("span", { class: "small dim" }, t("queues.pace", { n: pretty(queue.drained_per_minute) })) : null;
  if (whole(queue.depth) === 0) return [pace ?? h("span", { class: "dim" }, "–")];
  const eta = typeof queue.eta_seconds === "number" ? t("queues.eta", { span: span(queue.eta_seconds) }) : t("queues.eta_unknown");
  return [h("span", { class: typeof queue.eta_seconds === "number" ? "" : "dim" }, eta), pace];
}

/** @param {number} pace */
function pretty(pace) {
  return count(pace < 10 ? Math.round(pace * 10) / 10 : Math.round(pace));
}
