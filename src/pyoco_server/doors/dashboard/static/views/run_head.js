// Which run this is, how it stands, and what can be done with it.

import { act, confirm, mayAct } from "../lib/act.js";
import { send } from "../lib/api.js";
import { now, ticks } from "../lib/clock.js";
import { h, put, write } from "../lib/dom.js";
import { bytes, dateTime, shortId, span } from "../lib/format.js";
import { chartOf } from "../lib/gantt.js";
import { t, wordFor } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { actButton, badge, button, copy, facts, iconButton, isStale, lasting, refill, since } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { instant, isOver, isPack, isProgram, isTerminal, livesSurely, textOf } from "../lib/run_facts.js";
import { runAgain } from "./run_again.js";
import { workerLink } from "./run_attempts.js";
import { cancelAskedOf, changeOf } from "./run_change.js";
import { Guarded } from "./run_guard.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/dom.js").Child} Child */

export class RunHead {
  /**
   * @param {string} id
   * @param {string} list the address of the list one came from
   */
  constructor(id, list) {
    this.id = id;
    /** @type {Run | null} */
    this.run = null;
    this.name = h("h1", { class: "one-line" }, t("run.title"));
    this.badges = h("span", { class: "chips", role: "status" });
    this.actions = h("div", { class: "chips" });
    this.facts = h("div");
    this.heartbeat = h("span");
    this.left = h("span");
    this.workerState = h("span", { class: "small dim" });
    this.card = h("section", { class: "card", "aria-label": t("run.title"), hidden: true }, this.facts);
    this.element = h("header", { class: "run-head" },
      h("a", { class: "run-back small", href: list }, `← ${t("run.back")}`),
      h("div", { class: "view-head" },
        h("div", { class: "run-name" }, this.name, this.badges), this.actions),
      h("p", { class: "run-id" }, h("code", { class: "one-line", title: t("run.id") }, id),
        iconButton("copy", t("run.copy_id"), () => copy(id))),
      this.card);
    this.details = new Guarded({
      element: this.card,
      show: (run) => {
        this.showWorker(run);
        this.showFacts(run);
      },
    });
    this.unfollow = ticks.follow(() => {
      this.showBadges();
      if (this.run !== null) this.showWorker(this.run);
      this.showLeft();
    });
  }

  close() {
    this.unfollow();
  }

  /** @param {Run} run */
  show(run) {
    this.run = run;
    const name = textOf(run.flow_name) || t("run.title");
    write(this.name, name);
    this.name.title = name;
    this.card.hidden = false;
    this.showBadges();
    this.showLeft();
    this.showActions(run);
    this.details.show(run);
  }

  /** Whether a run is silent changes with time alone. */
  showBadges() {
    const run = this.run;
    if (run === null) return;
    const isGone = run.gone_at !== undefined;
    const shown = [String(run.status), ...(isStale(run) ? ["STALE"] : [])];
    refill(this.badges, [isGone, shown], () => (isGone ? [removedBadge()] : shown.map(badge)));
  }

  /** The time that a cancelled run has left changes with time alone. */
  showLeft() {
    const deadline = this.run?.status === "CANCELLING" ? instant(this.run.cancel_deadline_at) : null;
    if (deadline === null) return;
    const left = Math.ceil(deadline - now());
    write(this.left, left > 0 ? t("run.cancel_left.killed_in", { span: span(left) }) : t("run.cancel_left.over"));
  }

  /** @param {Run} run */
  showActions(run) {
    if (run.gone_at !== undefined) return put(this.actions); // nothing can be done with it
    const ended = isTerminal(run.status);
    const may = mayAct && !isPack(run);
    const offers = [may, may && !ended && run.status !== "CANCELLING", may && run.status === "CANCELLING"];
    refill(this.actions, offers, () => [
      button(t("run.copy_link"), () => copy(new URL(href("runs", [this.id]), location.href).href), { icon: "copy" }),
      offers[0] ? button(t("run.rerun"), () => this.run && runAgain(this.id, this.run), {
        icon: "repeat", title: t("run.rerun.title"),
      }) : null,
      offers[1] ? actButton(t("run.cancel"), () => this.cancel(), { icon: "stop", kind: "danger" }) : null,
      offers[2] ? actButton(t("run.cancel_now"), () => this.cancelNow(), { icon: "stop", kind: "danger", title: t("run.cancel_now.title") }) : null,
    ]);
  }

  async cancel() {
    const flow = textOf(this.run?.flow_name).slice(0, 100);
    const answer = await confirm({
      title: t("run.cancel.title"), body: h("p", null, t(this.run?.kind === "exec" ? "run.cancel.program" : "run.cancel.body", { flow })), yes: t("run.cancel"), danger: true,
      ask: t("run.cancel.ask"),
    });
    if (answer === null) return;
    const body = answer.text === "" ? {} : { reason: answer.text };
    await act(() => send("POST", `runs/${encodeURIComponent(this.id)}/cancel`, body), (run) =>
      (isTerminal(run.status) && run.status !== "CANCELLED"
        ? t("run.cancel.ended", { status: wordFor("status", run.status) }) : t("run.cancel.done")));
  }

  async cancelNow() {
    await act(() => send("POST", `runs/${encodeURIComponent(this.id)}/cancel`, { grace_sec: 0 }), () => t("run.cancel.done"));
  }

  /**
   * Ages that every heartbeat makes young again: in regions of their own, so that nothing else is touched.
   * @param {Run} run
   */
  showWorker(run) {
    refill(this.heartbeat, instant(run.heartbeat_at), () => [since(instant(run.heartbeat_at))]);
    const at = instant(run.worker_heartbeat_at);
    const lives = livesSurely(run, now());
    refill(this.workerState, [run.worker_alive, lives, at, isOver(run)], () => {
      // Nobody asks for it any more once the run has ended, and it would soon be untrue.
      if (run.worker_alive === undefined || isOver(run)) return [];
      if (lives) return [t("run.worker.alive")];
      if (at === null) return [t("run.worker.gone")];
      return [t("run.worker.heard"), " ", since(at)];
    });
    this.workerState.classList.toggle("mark", run.worker_alive === false && !isOver(run));
  }

  /** @param {Run} run */
  showFacts(run) {
    const chart = chartOf({ ...run, tasks: {}, task_records: {}, graph: {} });
    const ended = isTerminal(run.status);
    const { kind, attempt } = run;
    const tag = isPack(run) || isProgram(run) ? "" : textOf(run.tag); // no worker asks for them by tag
    const labels = (Array.isArray(run.tags) && !isProgram(run) ? run.tags : []).filter((each) => each !== tag).slice(0, 50);
    const made = [kind, tag, labels, run.tenant_id, run.api_key_id, chart, run.end_time, run.worker_id, attempt, run.last_change,
      run.rerun_of, run.retry_of, run.rerun_ids, run.letter_id, run.workflow_yaml_sha256, run.workflow_yaml_bytes, run.cancel_reason, run.cancel_requested_at,
      run.cancel_requested_by, run.schedule, ended, isOver(run)];
    refill(this.facts, made, () => [facts([
      [t("run.change"), changeOf(run)],
      [t("run.cancel_asked"), cancelAskedOf(run)],
      [t("run.cancel_left"), run.status === "CANCELLING" && instant(run.cancel_deadline_at) !== null ? this.left : null],
      [t("run.cancel_reason"), run.cancel_reason ? h("span", { class: "run-long" }, textOf(run.cancel_reason)) : null],
      [t("run.schedule"), run.schedule?.name ? scheduleOf(run.schedule) : null],
      [t("run.submitted"), since(instant(run.submitted_at))],
      [t("run.started"), chart.present ? since(chart.present.from) : null],
      [t("run.ended"), ended ? since(instant(run.end_time) ?? instant(run.updated_at)) : null],
      [t("run.waited"), chart.queued ? lasting(chart.queued.from, chart.queued.to) : null],
      [t(ended ? "run.took" : "run.takes"), chart.present ? lasting(chart.present.from, chart.present.to) : null],
      [t("run.worker"), run.worker_id ? [workerLink(textOf(run.worker_id)), " ", this.workerState] : null],
      [t("run.heartbeat"), isOver(run) || !run.worker_id ? null : this.heartbeat],
      [t("run.attempt"), attempt && !isPack(run) ? textOf(attempt) : null],
      [t("run.tag"), tag ? h("a", { href: href("runs", [], { tag }) }, tag) : null],
      [t("run.labels"), labels.length > 0 ? labelsOf(labels) : null],
      [t("run.kind"), kind ? textOf(kind) : null],
      [t("run.tenant"), textOf(run.tenant_id)],
      [t("run.key"), textOf(run.api_key_id)],
      [t("run.rerun_of"), run.rerun_of || run.retry_of ? runLink(textOf(run.rerun_of || run.retry_of)) : null],
      [t("run.rerun_ids"), Array.isArray(run.rerun_ids) && run.rerun_ids.length > 0 ? runLinks(run.rerun_ids) : null],
      [t("run.letter"), run.letter_id ? letterLink(textOf(run.letter_id)) : null],
      [t("run.yaml"), run.workflow_yaml_sha256 ? yamlOf(textOf(run.workflow_yaml_sha256), run.workflow_yaml_bytes) : null],
    ])]);
  }
}

function removedBadge() {
  return h("span", { class: "badge status-removed" }, icon("gone"), t("run.removed.badge"));
}

/** @param {unknown[]} labels */
function labelsOf(labels) {
  return h("span", { class: "chips" },
    labels.map((each) => h("span", { class: "tag-note one-line", title: textOf(each) }, textOf(each))));
}

/**
 * @param {import("../lib/wire.js").RunSchedule} schedule
 * @returns {Child}
 */
function scheduleOf({ name, tick, source }) {
  const at = instant(tick);
  return [h("a", { href: href("schedules", [textOf(name)]) }, textOf(name)),
    h("span", { class: "small dim" }, at === null ? "" : ` · ${dateTime(at)}`,
      source === undefined || source === "tick" ? "" : ` · ${wordFor("schedules.source", textOf(source))}`)];
}

/** @param {string} id */
function runLink(id) {
  return h("a", { class: "mono", href: href("runs", [id]), title: id }, shortId(id));
}

/** @param {string[]} ids newest first */
function runLinks(ids) {
  return h("span", { class: "chips" }, ids.map((id) => runLink(textOf(id))));
}

/** @param {string} id */
function letterLink(id) {
  return h("a", { class: "mono", href: href("letters", [], { letter: id }) }, id);
}

/**
 * @param {string} sha256
 * @param {number | undefined} size
 * @returns {Child}
 */
function yamlOf(sha256, size) {
  const same = href("runs", [], { workflow_yaml_sha256: sha256 });
  return [h("a", { class: "mono", title: sha256, href: same }, sha256.slice(0, 12)),
    typeof size === "number" ? ` · ${bytes(size)}` : null,
    iconButton("copy", t("copy"), () => copy(sha256))];
}
