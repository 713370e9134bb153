// Programs: what waits and runs of each, whose it is and how much they may, who serves it, and what the engine says.

import { get } from "../lib/api.js";
import { mayAct } from "../lib/act.js";
import { h, put, write } from "../lib/dom.js";
import { list, texts, whole } from "../lib/fleet.js";
import { count, percent, shortId, span } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { badge, button, commandBox, lasting, nothing, since } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { entries, groupsOf, offeredIn } from "../lib/programs.js";
import { href } from "../lib/router.js";
import { textOf } from "../lib/run_facts.js";
import { Region, replacePlace } from "./fleet_parts.js";
import { EventsList } from "./program_events.js";
import { capButton } from "./program_cap.js";
import { ProgramNumbers } from "./program_numbers.js";
import { runProgram } from "./program_submit.js";
import { meter, number, parts, Table, text } from "./program_tables.js";
import { workerLink } from "./run_attempts.js";

/** @typedef {import("../lib/wire.js").ExecGroup} ExecGroup */
/** @typedef {import("../lib/wire.js").ExecQueue} ExecQueue */
/** @typedef {import("../lib/wire.js").ExecJob} ExecJob */
/** @typedef {import("../lib/wire.js").ExecWorker} ExecWorker */
/** @typedef {import("../lib/wire.js").ExecDoor} ExecDoor */
/** @typedef {import("../lib/wire.js").ExecReplica} ExecReplica */
/** @typedef {import("../lib/router.js").Place} Place */
/** @typedef {{ name: string, p95: number | undefined, workers: number } & ExecQueue} QueueLine */
/** @typedef {{ name: string, held: number, cap: number | undefined }} ClientLine */

/** Counts are kept by the gateway; of jobs and run times it looks at the last thousand. */
const POLL_SECONDS = 5;
const PATTERNS_SHOWN = 8;

/**
 * @param {Place} place
 * @returns {import("../panels.js").View}
 */
export function openPrograms(place) {
  const view = new Programs(place.query.get("group"));
  return { element: view.element, moved: (to) => view.moved(to), close: () => view.close() };
}

class Programs {
  /** @param {string | null} group */
  constructor(group) {
    this.wanted = group;
    /** @type {string} */
    this.group = group ?? "";
    /** @type {Map<string, ExecGroup>} */
    this.groups = new Map();
    this.most = { queued: 0 };
    this.summary = h("p", { class: "summary" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": t("programs.groups") });
    this.region = new Region();
    this.tables = {
      queues: this.queueTable(), clients: this.clientTable(), jobs: jobTable(), workers: workerTable(), doors: doorTable(),
      replicas: replicaTable(),
    };
    this.numbers = new ProgramNumbers();
    this.events = new EventsList(() => ({ group: this.group, limit: 50 }));
    this.letters = h("a", { href: href("letters", [], { tag: "exec" }) });
    this.body = h("div", { class: "program-body" }, this.tables.queues.element, this.tables.clients.element, this.tables.jobs.element,
      this.tables.workers.element, this.tables.doors.element, this.tables.replicas.element, this.numbers.element,
      h("section", { class: "program-part", "aria-label": t("programs.events") }, h("h2", null, t("programs.events")),
        h("p", { class: "dim small" }, t("programs.events.note")), this.events.element));
    this.element = h("div", { class: "view programs" },
      h("div", { class: "view-head" }, h("h1", null, t("programs.title")), h("div", { class: "runs-tools" },
        mayAct ? button(t("programs.run"), () => runProgram(this.known()), { kind: "primary", icon: "upload" }) : null)),
      h("div", { class: "note-line" }, this.summary, this.letters), this.chips, this.region.element, commandBox("pyoco-grid state"));
    this.poll = poll(POLL_SECONDS, (signal) => this.region.guard(() => this.look(signal)));
  }

  close() {
    this.poll.stop();
    this.numbers.close();
    this.events.close();
  }

  /** @param {Place} place */
  moved(place) {
    if (place.panel !== "programs" || place.rest.length > 0) return false;
    this.wanted = place.query.get("group");
    this.draw();
    return true;
  }

  /** What a form can suggest. */
  known() {
    const group = this.groups.get(this.group);
    return {
      programs: [...new Set([...entries(group?.queues), ...entries(group?.p95), ...offeredIn(group)].map(([name]) => name))].sort(),
      clients: [...new Set(entries(group?.client_cap).map(([name]) => String(name.split("=")[0])))], group: this.group, groups: [...this.groups.keys()],
    };
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    this.groups = groupsOf(await get("exec/state", {}, signal));
    this.draw();
  }

  draw() {
    const names = [...this.groups.keys()];
    if (names.length === 0) return;
    this.group = names.find((each) => each === this.wanted) ?? names.find((each) => each === "default") ?? String(names[0]);
    this.drawGroups(names);
    this.show(/** @type {ExecGroup} */ (this.groups.get(this.group)));
  }

  /** @param {string[]} names one of them is no choice */
  drawGroups(names) {
    const focused = this.chips.contains(document.activeElement);
    put(this.chips, names.length < 2 ? null : names.map((name) => h("button", {
      type: "button", class: "chip", "aria-pressed": String(name === this.group), onclick: () => {
        replacePlace(href("programs", [], { group: name }));
        this.wanted = name;
        this.draw();
      },
    }, name)));
    if (focused) /** @type {HTMLElement | null} */ (this.chips.querySelector("[aria-pressed=true]"))?.focus();
  }

  /** @param {ExecGroup} group */
  show(group) {
    const queues = queueLines(group);
    const workers = list(group.workers);
    const queued = queues.reduce((sum, each) => sum + whole(each.queued), 0);
    const running = queues.reduce((sum, each) => sum + whole(each.inflight), 0);
    this.most.queued = Math.max(0, ...queues.map((each) => whole(each.queued)));
    write(this.summary, t("programs.summary", {
      queued: count(queued), running: count(running), workers: count(workers.length), doors: count(list(group.doors).length),
    }));
    write(this.letters, t("programs.letters", { n: count(whole(group.dlq?.count)) }));
    this.tables.queues.show(queues);
    this.tables.clients.show(clientLines(group));
    this.tables.jobs.show(entries(group.inflight).map(([, job]) => job).sort((a, b) => (b.since ?? 0) - (a.since ?? 0)));
    this.tables.workers.show(workers);
    this.tables.doors.show(list(group.doors));
    this.tables.replicas.show(entries(group.replicas).map(([stream, replicas]) => ({ stream, replicas: list(replicas) })));
    const isIdle = queues.length + workers.length + list(group.doors).length === 0;
    if (isIdle) this.region.show("nothing", () => [empty()]);
    else this.region.show("body", () => [this.body]);
    this.numbers.start();
  }

  queueTable() {
    const runs = (/** @type {QueueLine} */ line, /** @type {string} */ status) => href("runs", [], { kind: "exec", exec: line.name, status });
    /** @type {Table<QueueLine>} */
    const table = new Table(t("programs.queues"), t("programs.queues.none"), (line) => line.name, [
      parts(t("programs.program"), (line) => line.name, (line) => [h("a", { class: "queue-tag", href: runs(line, "") }, line.name)]),
      meter(t("programs.queued"), "wait", (line) => [whole(line.queued), this.most.queued, count(whole(line.queued))]),
      text(t("programs.oldest"), (line) => (typeof line.oldest_age_seconds === "number" ? span(Math.floor(line.oldest_age_seconds)) : "")),
      parts(t("programs.running"), (line) => line.inflight, (line) => [
        line.inflight > 0 ? h("a", { href: runs(line, "RUNNING") }, count(line.inflight)) : h("span", { class: "number" }, "0")]),
      text(t("programs.offered"), (line) => count(line.workers)),
      text(t("programs.p95"), (line) => (typeof line.p95 === "number" ? span(line.p95) : "")),
    ]);
    return table;
  }

  clientTable() {
    /** @type {Table<ClientLine>} */
    const table = new Table(t("programs.clients"), t("programs.clients.none"), (line) => line.name, [
      parts(t("programs.client"), (line) => line.name, (line) => [
        h("a", { class: "queue-tag", href: href("runs", [], { kind: "exec", client_id: line.name }) }, line.name)]),
      meter(t("programs.held"), "slots", (line) => [line.held, line.cap ?? 0, line.cap === undefined ? count(line.held)
        : t("programs.of", { n: count(line.held), most: count(line.cap) })]),
      parts(t("programs.cap"), (line) => [line.cap, this.group, line.name], (line) => [
        h("span", { class: "number" }, line.cap === undefined ? t("programs.cap.default") : count(line.cap)),
        mayAct ? capButton(line.name, this.group, line.cap, () => this.poll.soon()) : null]),
    ]);
    return table;
  }
}

function empty() {
  return nothing(t("programs.none"), h("p", { class: "prose" }, t("programs.none.how")),
    commandBox("pyoco-worker --exec-dir /opt/programs"), commandBox("pyoco-client program run calcA --wait -- 1 2 3"));
}

/**
 * Programs that wait or run, those that have ended lately, and all that a live worker offers.
 * @param {ExecGroup} group
 * @returns {QueueLine[]}
 */
function queueLines(group) {
  const open = new Map(entries(group.queues));
  const times = new Map(entries(group.p95));
  const offered = offeredIn(group);
  return [...new Set([...open.keys(), ...times.keys(), ...offered.keys()])].sort().map((name) => ({
    name, p95: times.get(name), workers: offered.get(name) ?? 0, ...(open.get(name) ?? { queued: 0, inflight: 0, oldest_age_seconds: null }),
  }));
}

/**
 * The busiest first.
 * @param {ExecGroup} group
 * @returns {ClientLine[]}
 */
function clientLines(group) {
  const caps = new Map(entries(group.client_cap));
  const held = new Map(entries(group.client_inflight));
  return [...new Set([...caps.keys(), ...held.keys()])].map((name) => ({ name, held: whole(held.get(name)), cap: caps.get(name) }))
    .sort((a, b) => b.held - a.held || (a.name < b.name ? -1 : 1));
}

function jobTable() {
  /** @type {Table<ExecJob>} */
  const table = new Table(t("programs.jobs"), t("programs.jobs.none"), (job) => String(job.run_id), [
    parts(t("programs.job"), (job) => [job.run_id, job.exec], (job) => [
      h("a", { href: href("runs", [String(job.run_id)]), title: String(job.run_id) }, textOf(job.exec), " ", h("span", { class: "mono" }, shortId(String(job.run_id))))]),
    parts(t("programs.status"), (job) => job.status, (job) => [badge(String(job.status))]),
    text(t("programs.client"), (job) => textOf(job.client)),
    parts(t("programs.worker"), (job) => job.worker, (job) => [job.worker ? workerLink(textOf(job.worker)) : "–"]),
    text(t("programs.attempt"), (job) => number(job.attempt)),
    parts(t("programs.since"), (job) => job.since, (job) => [lasting(job.since, null)]),
  ]);
  return table;
}

/** @param {string[]} patterns a worker may take hundreds of programs, each by its name */
function patternsOf(patterns) {
  const more = patterns.length > PATTERNS_SHOWN ? ` +${count(patterns.length - PATTERNS_SHOWN)}` : "";
  return h("span", { class: "small dim clip", title: patterns.join(", ").slice(0, 2000) }, patterns.slice(0, PATTERNS_SHOWN).join(", ") + more);
}

/** @param {ExecWorker} worker  it may run flows and packs, too */
function programsOf(worker) {
  return whole(worker.busy ?? list(worker.running).length);
}

function workerTable() {
  /** @type {Table<ExecWorker>} */
  const table = new Table(t("programs.workers"), t("programs.workers.none"), (worker) => String(worker.worker_id), [
    parts(t("programs.worker"), (worker) => [worker.worker_id, worker.patterns], (worker) => [
      workerLink(String(worker.worker_id)), patternsOf(texts(worker.patterns))]),
    parts(t("programs.status"), (worker) => worker.state, (worker) => [badge(textOf(worker.state) || "IDLE")]),
    text(t("programs.kind"), (worker) => (worker.kind ? wordFor("programs.kind", worker.kind) : t("programs.kind.lane"))),
    meter(t("programs.running"), "slots", (worker) => [programsOf(worker), whole(worker.max_parallel),
      t("programs.of", { n: count(programsOf(worker)), most: number(worker.max_parallel) || "–" })]),
    text(t("programs.credits"), (worker) => number(worker.credits)),
    text(t("programs.cpu"), (worker) => (typeof worker.cpu === "number" ? percent(worker.cpu) : "")),
    text(t("programs.door"), (worker) => textOf(worker.door_id)),
  ]);
  return table;
}

function doorTable() {
  /** @type {Table<ExecDoor>} */
  const table = new Table(t("programs.doors"), t("programs.doors.none"), (door) => String(door.door_id), [
    text(t("programs.door"), (door) => String(door.door_id)),
    text(t("programs.address"), (door) => textOf(door.addr)),
    text(t("programs.status"), (door) => wordFor("programs.door", textOf(door.state))),
    text(t("programs.connections"), (door) => number(door.connections)),
    parts(t("programs.started"), (door) => door.started_at, (door) => [since(door.started_at)]),
  ]);
  return table;
}

function replicaTable() {
  /** @type {Table<{ stream: string, replicas: ExecReplica[] }>} */
  const table = new Table(t("programs.replicas"), t("programs.replicas.none"), (line) => line.stream, [
    text(t("programs.stream"), (line) => line.stream),
    text(t("programs.leader"), (line) => textOf(line.replicas.find((each) => each.leader)?.name)),
    text(t("programs.current"), (line) => t("programs.of", {
      n: count(line.replicas.filter((each) => each.current).length), most: count(line.replicas.length),
    })),
    text(t("programs.lag"), (line) => count(Math.max(0, ...line.replicas.map((each) => whole(each.lag))))),
  ]);
  return table;
}
