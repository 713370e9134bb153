// Which run this is, how it stands, and what can be done with it.

import { act, confirm, mayAct } from "../lib/act.js";
import { Refused, send } from "../lib/api.js";
import { ticks } from "../lib/clock.js";
import { h, put, write } from "../lib/dom.js";
import { bytes, shortId } from "../lib/format.js";
import { chartOf } from "../lib/gantt.js";
import { t, wordFor } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { freshKey } from "../lib/once.js";
import { actButton, badge, button, copy, facts, iconButton, isStale, lasting, refill, since } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { instant, isOver, isTerminal, textOf } from "../lib/run_facts.js";
import { toast } from "../lib/toast.js";
import { workerLink } from "./run_attempts.js";
import { Guarded } from "./run_guard.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/dom.js").Child} Child */

/** @type {Map<string, string>} of runs that were asked to run again, and nobody knows whether they do: the key */
const unanswered = new Map();

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
    this.workerState = h("span", { class: "small dim" });
    this.card = h("section", { class: "card", "aria-label": t("run.title"), hidden: true }, this.facts);
    this.element = h("header", { class: "run-head" },
      h("a", { class: "run-back small", href: list }, `← ${t("run.back")}`),
      h("div", { class: "view-head" },
        h("div", { class: "run-name" }, this.name, this.badges), this.actions),
      h("p", { class: "run-id" }, h("code", { class: "one-line", title: t("run.id") }, id),
        iconButton("copy", t("run.copy_id"), () => copy(id))),
      this.card);
    this.isOpen = true;
    this.details = new Guarded({
      element: this.card,
      show: (run) => {
        this.showWorker(run);
        this.showFacts(run);
      },
    });
    this.unfollow = ticks.follow(() => this.showBadges());
  }

  close() {
    this.isOpen = false;
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

  /** @param {Run} run */
  showActions(run) {
    if (run.gone_at !== undefined) return put(this.actions); // nothing can be done with it
    const ended = isTerminal(run.status);
    const offers = [mayAct, mayAct && !ended && run.status !== "CANCELLING"];
    refill(this.actions, [offers, ended], () => [
      button(t("run.copy_link"), () => copy(new URL(href("runs", [this.id]), location.href).href), { icon: "copy" }),
      offers[0] ? actButton(t("run.rerun"), () => this.rerun(), {
        icon: "repeat", title: t("run.rerun.title"), kind: ended ? "primary" : "plain",
      }) : null,
      offers[1] ? actButton(t("run.cancel"), () => this.cancel(), { icon: "stop", kind: "danger" }) : null,
    ]);
  }

  async rerun() {
    const done = await act(() => sendAgain(this.id));
    if (typeof done?.run_id !== "string") return;
    const there = href("runs", [done.run_id]);
    if (!this.isOpen) return toast(t("run.rerun.there"), "plain", there); // whoever went elsewhere is left there
    toast(t("run.rerun.done"));
    location.hash = there;
  }

  async cancel() {
    const flow = textOf(this.run?.flow_name).slice(0, 100);
    const answer = await confirm({
      title: t("run.cancel.title"), body: h("p", null, t("run.cancel.body", { flow })), yes: t("run.cancel"), danger: true,
      ask: t("run.cancel.ask"),
    });
    if (answer === null) return;
    const body = answer.text === "" ? {} : { reason: answer.text };
    await act(() => send("POST", `runs/${encodeURIComponent(this.id)}/cancel`, body), (run) =>
      (isTerminal(run.status) && run.status !== "CANCELLED"
        ? t("run.cancel.ended", { status: wordFor("status", run.status) }) : t("run.cancel.done")));
  }

  /**
   * Ages that every heartbeat makes young again: in regions of their own, so that nothing else is touched.
   * @param {Run} run
   */
  showWorker(run) {
    refill(this.heartbeat, instant(run.heartbeat_at), () => [since(instant(run.heartbeat_at))]);
    const at = instant(run.worker_heartbeat_at);
    refill(this.workerState, [run.worker_alive, at, isOver(run)], () => {
      // Nobody asks for it any more once the run has ended, and it would soon be untrue.
      if (run.worker_alive === undefined || isOver(run)) return [];
      if (at === null) return [t("run.worker.gone")];
      return [run.worker_alive ? t("run.worker.alive") : t("run.worker.silent"), " ", since(at)];
    });
    this.workerState.classList.toggle("mark", run.worker_alive === false && !isOver(run));
  }

  /** @param {Run} run */
  showFacts(run) {
    const chart = chartOf({ ...run, tasks: {}, task_records: {}, graph: {} });
    const ended = isTerminal(run.status);
    const { kind, attempt, last_change: change } = run;
    const tag = textOf(run.tag);
    const labels = (Array.isArray(run.tags) ? run.tags : []).filter((each) => each !== tag).slice(0, 50);
    const made = [kind, tag, labels, run.tenant_id, run.api_key_id, chart, run.end_time, run.worker_id, attempt, change,
      run.rerun_of, run.workflow_yaml_sha256, run.workflow_yaml_bytes, run.cancel_reason, ended, isOver(run)];
    refill(this.facts, made, () => [facts([
      [t("run.change"), change ? changeOf(change) : null],
      [t("run.submitted"), since(instant(run.submitted_at))],
      [t("run.started"), chart.present ? since(chart.present.from) : null],
      [t("run.ended"), ended ? since(instant(run.end_time) ?? instant(run.updated_at)) : null],
      [t("run.waited"), chart.queued ? lasting(chart.queued.from, chart.queued.to) : null],
      [t(ended ? "run.took" : "run.takes"), chart.present ? lasting(chart.present.from, chart.present.to) : null],
      [t("run.worker"), run.worker_id ? [workerLink(textOf(run.worker_id)), " ", this.workerState] : null],
      [t("run.heartbeat"), isOver(run) || !run.worker_id ? null : this.heartbeat],
      [t("run.attempt"), attempt ? textOf(attempt) : null],
      [t("run.tag"), tag ? h("a", { href: href("runs", [], { tag }) }, tag) : null],
      [t("run.labels"), labels.length > 0 ? labelsOf(labels) : null],
      [t("run.kind"), kind ? textOf(kind) : null],
      [t("run.tenant"), textOf(run.tenant_id)],
      [t("run.key"), textOf(run.api_key_id)],
      [t("run.rerun_of"), run.rerun_of ? runLink(textOf(run.rerun_of)) : null],
      [t("run.yaml"), run.workflow_yaml_sha256 ? yamlOf(textOf(run.workflow_yaml_sha256), run.workflow_yaml_bytes) : null],
      [t("run.cancel_reason"), run.cancel_reason ? h("span", { class: "run-long" }, textOf(run.cancel_reason)) : null],
    ])]);
  }
}

/**
 * The same once more, once: sent again after a lost answer, it goes under the same key.
 * @param {string} id
 */
async function sendAgain(id) {
  const key = unanswered.get(id) ?? freshKey();
  unanswered.set(id, key);
  try {
    const done = await send("POST", `runs/${encodeURIComponent(id)}/rerun`, {}, undefined, key);
    unanswered.delete(id);
    return done;
  } catch (error) {
    if (error instanceof Refused && error.status < 500) unanswered.delete(id); // a plain no; trouble says nothing
    throw error;
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

/** @param {string} id */
function runLink(id) {
  return h("a", { class: "mono", href: href("runs", [id]), title: id }, shortId(id));
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

/**
 * @param {import("../lib/wire.js").LastChange} change
 * @returns {Child}
 */
function changeOf(change) {
  const what = wordFor("run.change", textOf(change.what));
  const who = whoDid(change.by);
  return [who === "" ? what : t("run.change.by", { what, who }), " · ", since(instant(change.at))];
}

/** @param {import("../lib/wire.js").LastChange["by"]} by nobody is told apart without authentication */
function whoDid(by) {
  const id = textOf(by?.id);
  if (by?.kind === "worker") return id === "" ? t("run.who.a_worker") : t("run.who.worker", { id });
  if (by?.kind === "api_key") return t("run.who.api_key", { id });
  return by?.kind === "keeper" ? t("run.who.keeper") : "";
}
