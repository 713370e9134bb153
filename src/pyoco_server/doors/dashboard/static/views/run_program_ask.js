// What a program was asked for with, and what happened to it since.

import { h } from "../lib/dom.js";
import { bytes, count, dateTime, span } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { badge, card, commandBox, copy, facts, iconButton, lasting, refill, shellWord, since } from "../lib/parts.js";
import { askedOf } from "../lib/programs.js";
import { href } from "../lib/router.js";
import { instant, isObject, isTerminal, textOf } from "../lib/run_facts.js";
import { EventsList } from "./program_events.js";
import { workerLink } from "./run_attempts.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/dom.js").Child} Child */

const SHOWN_MAX = 1100; // arguments that a job may have, and a few more
const ARGUMENT_CHARACTERS = 4000;
const SHA_CHARACTERS = 12;

/** Arguments one by one, and the files that came with them. */
export class ProgramAskSection {
  constructor() {
    this.body = h("div", { class: "program-ask" });
    this.element = card(t("program.ask"), {}, this.body);
  }

  /** @param {Run} run */
  show(run) {
    const { args, files, timeout } = askedOf(run);
    refill(this.body, [args, files, timeout, run.params_truncated, run.exec_name], () => [
      run.params_truncated ? h("p", { class: "mark" }, t("run.params.truncated")) : null,
      h("h3", null, t("program.args")),
      args.length === 0 ? h("p", { class: "dim" }, t("program.args.none")) : argumentList(args),
      h("h3", null, t("program.files")),
      files.length === 0 ? h("p", { class: "dim" }, t("program.files.none")) : h("ul", { class: "program-files" }, files.map((each) =>
        h("li", null, h("span", { class: "program-file" }, each.name),
          h("span", { class: "dim number" }, each.size === null ? "–" : bytes(each.size)),
          each.sha256 === "" ? null : h("code", { class: "dim", title: each.sha256 }, each.sha256.slice(0, SHA_CHARACTERS))))),
      timeout === null ? null : facts([[t("program.timeout"), span(timeout)]]),
    ]);
  }
}

/** @param {string[]} args */
function argumentList(args) {
  return h("ol", { class: "program-args" }, args.slice(0, SHOWN_MAX).map((each) => h("li", null,
    each === "" ? h("span", { class: "dim" }, t("program.args.empty"))
      : h("code", null, each.length > ARGUMENT_CHARACTERS ? `${each.slice(0, ARGUMENT_CHARACTERS)}…` : each),
    iconButton("copy", t("copy"), () => copy(each)))));
}

/** Whose job it is, and how much patience is left for it. */
export class ProgramFactsSection {
  constructor() {
    this.body = h("div");
    this.element = card(t("program.section"), {}, this.body);
  }

  /** @param {Run} run */
  show(run) {
    const { exec_name: program, client_id: client, group, job_id: job, attempt, max_attempts: most, lost } = run;
    refill(this.body, [program, client, group, job, attempt, most, lost], () => [facts([
      [t("runs.filter.exec"), program ? only({ exec: textOf(program) }, textOf(program)) : null],
      [t("runs.filter.client_id"), client ? only({ client_id: textOf(client) }, textOf(client)) : null],
      [t("runs.filter.group"), group ? h("a", { href: href("programs", [], { group: textOf(group) }) }, textOf(group)) : null],
      [t("program.attempts"), typeof attempt === "number" ? count(attempt) : null],
      [t("program.lost"), lost ? count(lost) : null],
      [t("program.may_fail"), typeof most === "number" ? count(most) : null],
      [t("program.job"), job ? [h("code", { class: "program-job" }, textOf(job)), iconButton("copy", t("copy"), () => copy(textOf(job)))] : null],
    ])]);
  }
}

/**
 * @param {Record<string, string>} filter
 * @param {string} words
 */
function only(filter, words) {
  return h("a", { href: href("runs", [], { kind: "exec", ...filter }) }, words);
}

/** Every state it was in, with each attempt: when, where, and what became of it; and the events on demand. */
export class ProgramHistorySection {
  constructor() {
    this.body = h("ol", { class: "run-attempts program-history" });
    this.events = new EventsList(() => ({ job_id: this.job, limit: 100 }));
    this.job = "";
    this.element = card(t("program.history"), {}, this.body, this.events.element);
  }

  close() {
    this.events.close();
  }

  /** @param {Run} run */
  show(run) {
    this.job = textOf(run.job_id);
    const earlier = (Array.isArray(run.earlier_attempts) ? run.earlier_attempts : []).filter(isObject);
    const made = [run.status, run.submitted_at, earlier, run.attempt, run.worker_id, run.start_time, run.end_time, run.not_before,
      run.cancel_requested_at, run.updated_at && run.status === "PENDING"];
    refill(this.body, made, () => [
      step("PENDING", run.submitted_at, t("program.step.submitted")),
      ...earlier.map((each) => attempt(each.attempt, each.worker_id, each.started_at, each.ended_at,
        h("span", { class: "mark" }, wordFor("run.why", textOf(each.why))))),
      ...this.present(run, earlier.length),
    ]);
  }

  /**
   * @param {Run} run
   * @param {number} before how many attempts were put back
   */
  present(run, before) {
    const ended = isTerminal(run.status);
    const runs = run.status === "RUNNING" || run.status === "CANCELLING";
    const retry = instant(run.not_before);
    // A record says when its last attempt began also after that was put back: then it is among those before.
    const isNew = run.start_time && (runs || (ended && textOf(run.worker_id) !== ""));
    return [
      run.status === "PENDING" && before > 0
        ? h("li", null, badge("PENDING"), h("span", null, retry === null ? t("program.step.again") : t("program.step.not_before", { at: dateTime(retry) })))
        : null,
      isNew ? attempt(run.attempt, run.worker_id, run.start_time, ended ? run.end_time : null, badge(runs ? run.status : "RUNNING")) : null,
      run.cancel_requested_at ? step("CANCELLING", run.cancel_requested_at, t("run.cancel_asked")) : null,
      ended ? step(run.status, run.end_time ?? run.updated_at, "") : null,
    ];
  }
}

/**
 * @param {string} status
 * @param {unknown} at
 * @param {string} words
 */
function step(status, at, words) {
  return h("li", null, badge(status), h("span", { class: "run-attempt-when" }, since(instant(at))), words === "" ? null : h("span", null, words));
}

/**
 * @param {unknown} number
 * @param {unknown} worker
 * @param {unknown} from
 * @param {unknown} to
 * @param {HTMLElement} how
 */
function attempt(number, worker, from, to, how) {
  const began = instant(from);
  return h("li", null, how, h("strong", null, t("run.timeline.attempt", { n: textOf(number) || "–" })),
    textOf(worker) === "" ? null : workerLink(textOf(worker)),
    began === null ? null : h("span", { class: "run-attempt-when" }, since(began), " · ", lasting(began, instant(to))));
}

/** The same in a terminal; and the same job once more, by hand. */
export class ProgramCommandsSection {
  /** @param {import("./run_kinds.js").RunPage} page */
  constructor(page) {
    this.id = page.id;
    this.body = h("div", { class: "run-commands" });
    this.element = card(t("run.commands"), {}, this.body);
  }

  /** @param {Run} run */
  show(run) {
    const ended = isTerminal(run.status);
    const { args, files } = askedOf(run);
    refill(this.body, [ended, args, files, run.exec_name], () => [
      ...(ended ? ["get", "logs", "why", "program artifacts", "rerun"] : ["watch", "get", "logs", "why", "cancel"]).map((verb) => commandBox(`pyoco-client ${verb} ${this.id}`)),
      run.exec_name && args.join("").length < ARGUMENT_CHARACTERS ? commandBox(execCommand(textOf(run.exec_name), args, files)) : null,
    ]);
  }
}

/**
 * @param {string} program
 * @param {string[]} args
 * @param {{ name: string }[]} files
 */
function execCommand(program, args, files) {
  return ["pyoco-client program run", shellWord(program), ...files.map((each) => `--file ${shellWord(each.name)}`), "--wait",
    ...(args.length === 0 ? [] : ["--", ...args.map((each) => (each === "" ? "''" : shellWord(each)))])].join(" ");
}
