// One worker: a line, and all that is known of it below.

import { send } from "../lib/api.js";
import { act, mayAct } from "../lib/act.js";
import { now } from "../lib/clock.js";
import { h, write } from "../lib/dom.js";
import { busySlots, isAlive, isDeaf, list, texts, whole } from "../lib/fleet.js";
import { count, shortId } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { actButton, badge, commandBox, refill, since } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { settings } from "../lib/settings.js";
import { cell, liveFacts, Meter, opener, showSince, tagLinks } from "./fleet_parts.js";

/** @typedef {import("../lib/wire.js").Worker} Worker */
/** @typedef {import("../lib/dom.js").Leaf} Leaf */

const RUNS_SHOWN = 3;
const RUNS_SHOWN_OPEN = 100;

export class WorkerRow {
  /**
   * @param {(id: string) => void} toggle
   * @param {() => void} changed something was done to it: look again
   */
  constructor(toggle, changed) {
    this.changed = changed;
    /** @type {Worker} */
    this.worker = { worker_id: "", state: "" };
    this.open = false;
    this.name = h("span", { class: "worker-name" });
    const opens = opener(() => toggle(this.worker.worker_id), this.name);
    this.opener = opens.button;
    this.detail = opens.detail;
    this.marks = h("span", { class: "marks" });
    this.tags = h("div", { class: "tags" });
    this.slots = new Meter("slots");
    this.heart = h("span");
    this.state = cell(t("workers.state"), "state");
    this.runs = cell(t("workers.runs"), "runs");
    this.deaf = h("div");
    this.wheels = cell(t("workers.wheels"), "wheels");
    this.element = h("div", { class: "row", role: "listitem" },
      h("div", { class: "row-line" },
        this.state.element,
        h("div", { class: "cell cell-name" }, h("div", { class: "name-line" }, this.opener, this.marks), this.tags),
        cell(t("workers.slots"), "slots", this.slots.element).element,
        this.runs.element,
        cell(t("workers.heard"), "heard", this.heart, this.deaf).element,
        this.wheels.element),
      this.detail);
  }

  /** @param {Worker} worker */
  update(worker) {
    this.worker = worker;
    const running = texts(worker.running);
    const id = String(worker.worker_id);
    write(this.name, id);
    this.name.title = id;
    this.element.classList.toggle("off", !isAlive(worker));
    refill(this.state.value, worker.state, () => [badge(String(worker.state))]);
    refill(this.marks, worker.hidden === true, () => (worker.hidden ? [hiddenMark()] : []));
    refill(this.tags, worker.tags, () => tagLinks("workers", texts(worker.tags)));
    const busy = busySlots(worker);
    this.slots.show(busy, whole(worker.slots), `${count(busy)} / ${count(whole(worker.slots))}`);
    refill(this.runs.value, running.slice(0, RUNS_SHOWN + 1).concat(String(running.length)), () => runLinks(running, RUNS_SHOWN));
    showSince(this.heart, worker.last_heartbeat_at);
    const deaf = isDeaf(worker, now());
    refill(this.deaf, deaf, () => (deaf ? [h("span", { class: "mark" }, icon("warning"), " ", t("workers.deaf"))] : []));
    refill(this.wheels.value, wheelFacts(worker), () => wheelWords(worker));
    if (this.open) this.showDetail();
  }

  /** @param {boolean} open */
  expand(open) {
    this.open = open;
    this.opener.setAttribute("aria-expanded", String(open));
    this.element.classList.toggle("open", open);
    this.detail.hidden = !open;
    if (open) this.showDetail();
  }

  showDetail() {
    if (this.detail.childElementCount === 0) this.buildDetail();
    const { worker } = this;
    const sync = worker.wheel_sync ?? null;
    liveFacts(/** @type {HTMLDListElement} */ (this.facts), [
      [t("workers.heartbeat"), worker.last_heartbeat_at, () => since(worker.last_heartbeat_at)],
      [t("workers.pull"), worker.last_pull_at, () => since(worker.last_pull_at)],
      [t("workers.stopped"), worker.stopped_at, () => since(worker.stopped_at)],
      [t("workers.stop_reason"), worker.stop_reason, () => String(worker.stop_reason).slice(0, 500)],
      [t("workers.last_run"), worker.last_run_status, () => badge(String(worker.last_run_status))],
      [t("workers.restarts"), worker.host_restarts ?? null, () => count(whole(worker.host_restarts))],
      [t("workers.versions"), versionsOf(worker), () => versionsOf(worker)],
      [t("workers.instance"), worker.instance_id, () => h("span", { class: "mono" }, String(worker.instance_id))],
      [t("workers.hidden_since"), worker.hidden ? worker.updated_at : null, () => since(worker.updated_at)],
      [t("workers.synced"), sync?.last_sync_at, () => since(sync?.last_sync_at)],
    ]);
    refill(/** @type {Element} */ (this.sync), sync && { ...sync, last_sync_at: 0 }, () => syncParts(worker));
    const running = texts(worker.running);
    refill(/** @type {Element} */ (this.allRuns), running, () => (running.length <= RUNS_SHOWN ? [] : [
      h("h3", null, t("workers.runs_now")), h("div", { class: "run-links" }, runLinks(running, RUNS_SHOWN_OPEN)),
    ]));
    refill(/** @type {Element} */ (this.actions), worker.hidden === true, () => this.actionParts());
  }

  buildDetail() {
    this.facts = h("dl", { class: "facts" });
    this.allRuns = h("div", { class: "stack" });
    this.sync = h("div", { class: "stack" });
    this.actions = h("div", { class: "row-actions" });
    this.detail.append(this.facts, this.allRuns, this.sync, this.actions);
  }

  /** @returns {Leaf[]} */
  actionParts() {
    const hidden = this.worker.hidden === true;
    const id = this.worker.worker_id;
    if (!mayAct) return [];
    return [
      actButton(t(hidden ? "workers.unhide" : "workers.hide"), async () => {
        const path = `workers/${encodeURIComponent(id)}`;
        const done = await act(() => send("PATCH", path, { hidden: !hidden }),
          () => t(hidden ? "workers.unhidden" : "workers.was_hidden", { id }));
        if (done !== undefined) this.changed();
      }, { icon: hidden ? "eye" : "hidden" }),
      h("span", { class: "small dim" }, t("workers.hide_note")),
    ];
  }
}

function hiddenMark() {
  return h("span", { class: "tag-note" }, icon("hidden"), " ", t("workers.hidden"));
}

/**
 * @param {string[]} running
 * @param {number} most
 * @returns {Leaf[]}
 */
function runLinks(running, most) {
  if (running.length === 0) return [h("span", { class: "dim" }, "–")];
  // Workers serve every tenant, and do not tell whose a run is: a key opens the runs of its own.
  const titleOf = (/** @type {string} */ id) => (settings.asksForKey ? `${id}\n${t("workers.run_of_others")}` : id);
  const links = running.slice(0, most).map((id) =>
    h("a", { class: "mono run-link", href: href("runs", [id]), title: titleOf(id) }, shortId(id)));
  return running.length > most ? [...links, h("span", { class: "dim small" }, `+${count(running.length - most)}`)] : links;
}

/** @param {Worker} worker */
function versionsOf(worker) {
  const versions = worker.versions;
  if (typeof versions !== "object" || versions === null) return null;
  return Object.entries(versions).map(([name, version]) => `${name} ${String(version)}`).join(", ").slice(0, 500);
}

/**
 * What the line about wheels is made from.
 * @param {Worker} worker
 */
function wheelFacts(worker) {
  const sync = worker.wheel_sync;
  return sync ? [list(sync.installed).length + whole(sync.installed_more), list(sync.failed).length + whole(sync.failed_more),
    list(sync.installing).length] : null;
}

/**
 * @param {Worker} worker
 * @returns {Leaf[]}
 */
function wheelWords(worker) {
  const facts = wheelFacts(worker);
  if (facts === null) return [h("span", { class: "dim" }, t("workers.sync_off"))];
  const [installed = 0, failed = 0, installing = 0] = facts;
  return [
    h("span", null, t("workers.installed", { n: count(installed) })),
    installing === 0 ? null : h("span", { class: "dim" }, t("workers.installing", { n: count(installing) })),
    failed === 0 ? null : h("span", { class: "badge status-failed" }, icon("failed"), t("workers.failed", { n: count(failed) })),
  ];
}

/**
 * @param {Worker} worker
 * @returns {Leaf[]}
 */
function syncParts(worker) {
  const sync = worker.wheel_sync;
  if (!sync) {
    return [h("h3", null, t("workers.wheels")), h("p", { class: "dim small" }, t("workers.sync_how")),
      commandBox(`pyoco-worker --wheel-sync`)];
  }
  const installed = texts(sync.installed);
  const troubles = (/** @type {any[]} */ items, /** @type {string} */ why) => h("ul", { class: "troubles" }, items.map((each) =>
    h("li", null, h("code", null, each?.wheel_name === "*" ? t("workers.sync_all") : String(each?.wheel_name)),
      h("span", null, String(each?.[why] ?? "").slice(0, 2000)))));
  const failed = list(sync.failed);
  const skipped = list(sync.skipped);
  return [
    h("h3", null, t("workers.wheels")),
    installed.length === 0 ? h("p", { class: "dim small" }, t("workers.no_wheels")) : h("div", { class: "chips" },
      installed.map((name) => h("a", { class: "tag-note tag-link mono", href: href("wheels", [], { wheel: name }) }, name)),
      more(sync.installed_more)),
    texts(sync.installing).length === 0 ? null
      : h("p", { class: "small" }, t("workers.installing_now", { names: texts(sync.installing).join(", ") })),
    failed.length === 0 ? null : h("p", { class: "bad-word" }, icon("failed"), " ", t("workers.failing")),
    failed.length === 0 ? null : troubles(failed, "error"), more(sync.failed_more),
    skipped.length === 0 ? null : h("p", { class: "small dim" }, t("workers.skipped")),
    skipped.length === 0 ? null : troubles(skipped, "reason"), more(sync.skipped_more),
  ];
}

/** @param {unknown} n */
function more(n) {
  return whole(n) === 0 ? null : h("span", { class: "dim small" }, t("fleet.more", { n: count(whole(n)) }));
}
