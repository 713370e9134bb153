// One row of the list of runs. Its elements are made once and filled again and again, with whatever run is there now.

import { now } from "../lib/clock.js";
import { h, write } from "../lib/dom.js";
import { ago, dateTime, shortId, span } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { badge, copy, iconButton, isStale } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { costWords, moneyBadge } from "../lib/pack_parts.js";
import { barOf, timesOf } from "../lib/run_bars.js";

/** @typedef {import("../lib/run_list.js").Row} Run */

const LABELS_SHOWN = 4;
/** A run that failed shows its error behind them. */
const LABELS_BESIDE_ERROR = 2;
const BADGES_MAX = 12;

export class RunRow {
  /** @param {boolean} selectable */
  constructor(selectable) {
    /** @type {Run | null} */
    this.run = null;
    this.index = -1;
    this.badged = "";
    this.lengths = "";
    this.scale = 0;
    this.check = h("input", { type: "checkbox", tabindex: "-1", "data-do": "select", "aria-label": t("runs.select") });
    this.status = cell("status");
    /** @type {Map<string, HTMLElement[]>} used again: a row shows many runs in its life */
    this.badges = new Map();
    this.flow = h("a", { class: "runs-flow-name", tabindex: "-1", "data-do": "open" });
    this.kind = h("span", { class: "runs-kind" });
    this.program = h("span", { class: "runs-program number", hidden: true });
    this.noteText = h("span", { class: "runs-error" });
    this.noteRest = h("span");
    this.labels = Array.from({ length: LABELS_SHOWN }, () => h("a", { class: "runs-label", tabindex: "-1", hidden: true }));
    this.note = h("div", { class: "runs-note" }, ...this.labels, this.noteRest, this.noteText);
    this.params = cell("params");
    this.noted = "";
    this.tag = h("a", { class: "runs-tag", tabindex: "-1" });
    this.worker = h("a", { class: "runs-worker", tabindex: "-1" });
    this.money = h("span", { class: "runs-money", hidden: true });
    this.cost = h("span", { class: "runs-cost number", hidden: true });
    this.paid = "";
    this.waitBar = h("span", { class: "runs-bar-wait" });
    this.runBar = h("span", { class: "runs-bar-run" });
    this.track = h("div", { class: "runs-track", "aria-hidden": "true" }, this.waitBar, this.runBar);
    this.waited = h("span");
    this.ran = h("span");
    this.age = h("time", { "data-as": "ago" });
    this.id = h("code");
    this.element = h("div", { class: "runs-row", role: "row", tabindex: "-1" },
      selectable ? cell("check", this.check) : null,
      this.status,
      cell("flow", h("div", { class: "runs-line" }, this.flow, this.kind, this.program), this.note),
      this.params,
      cell("where", h("div", { class: "runs-line" }, this.tag, this.money), h("div", { class: "runs-line" }, this.worker, this.cost)),
      cell("times", this.track, h("div", { class: "runs-numbers" }, this.waited, this.ran)),
      cell("when", h("div", { class: "runs-line" }, this.age),
        h("div", { class: "runs-line" }, this.id, this.copyButton())));
    this.controls = [...this.element.querySelectorAll("a, input, button")];
  }

  copyButton() {
    const element = iconButton("copy", t("runs.copy_id"), () => this.run && copy(this.run.run_id));
    element.setAttribute("tabindex", "-1");
    return element;
  }

  /**
   * @param {Run} run
   * @param {{ index: number, selected: boolean, active: boolean, scale: number }} now
   */
  show(run, { index, selected, active, scale }) {
    if (this.index !== index) this.element.setAttribute("aria-rowindex", String(index + 2));
    this.index = index;
    if (this.check.checked !== selected) this.check.checked = selected;
    const chosen = String(selected);
    if (this.element.getAttribute("aria-selected") !== chosen) this.element.setAttribute("aria-selected", chosen);
    this.activate(active);
    if (this.run !== run) this.fill(run);
    else if (this.scale === scale) return;
    this.scale = scale;
    this.tick();
  }

  /**
   * One row of the grid can be reached with Tab, and what is in it.
   * @param {boolean} active
   */
  activate(active) {
    const place = active ? 0 : -1;
    if (this.element.tabIndex === place) return;
    this.element.tabIndex = place;
    for (const control of this.controls) /** @type {HTMLElement} */ (control).tabIndex = place;
  }

  /** @param {Run} run */
  fill(run) {
    this.run = run;
    this.element.dataset.id = run.run_id;
    if (this.element.dataset.status !== run.status) this.element.dataset.status = run.status;
    const name = run.flow_name ?? t("runs.no_flow");
    link(this.flow, name, href("runs", [run.run_id]));
    say(this.kind, wordFor("runs.kind", run.kind ?? "flow"));
    this.fillProgram(run);
    link(this.worker, run.worker_id ?? "", href("workers", [], { worker: run.worker_id }));
    this.worker.hidden = run.worker_id === undefined;
    this.fillMoney(run);
    this.fillNote(run);
    if (say(this.params, run.params_preview ?? "")) this.params.title = run.params_preview ?? "";
    say(this.id, shortId(run.run_id));
    this.id.title = run.run_id;
    this.fillAge(run);
  }

  /**
   * Nobody asks for a priced run by tag: what stands there is its money.
   * @param {Run} run
   */
  fillMoney(run) {
    const isPack = run.kind === "pack";
    this.tag.hidden = isPack;
    this.money.hidden = this.cost.hidden = !isPack;
    if (!isPack) return;
    const state = run.money_state ?? "";
    if (this.paid !== state) this.money.replaceChildren(...(state === "" ? [] : [moneyBadge(state)]));
    this.paid = state;
    say(this.cost, run.redacted ? t("runs.redacted") : costWords(run.cost));
    this.cost.title = run.redacted ? t("runs.redacted.why") : "";
  }

  /**
   * All programs have the same tag: what stands there is whose job it is. How often it was tried, and how it left.
   * @param {Run} run
   */
  fillProgram(run) {
    const isProgram = run.kind === "exec";
    this.program.hidden = !isProgram;
    if (!isProgram) return link(this.tag, run.tag ?? "–", href("runs", [], { tag: run.tag }));
    link(this.tag, run.client_id ?? "–", href("runs", [], { kind: "exec", client_id: run.client_id }));
    say(this.program, [
      run.attempt ? t("runs.attempt", { n: run.attempt }) : "",
      run.exit_code === undefined ? "" : t("runs.exit_code", { n: run.exit_code }),
    ].filter(Boolean).join(" · "));
  }

  /** @param {Run} run */
  fillNote(run) {
    const schedule = run.schedule_name === undefined ? "" : `schedule:${run.schedule_name}`;
    const told = [run.tag, run.exec_name, schedule]; // elsewhere, and the schedule first
    const labels = [...(schedule ? [schedule] : []), ...(run.tags ?? []).filter((label) => !told.includes(label))];
    const made = `${labels.join("\n")}!${run.error ?? ""}`;
    if (this.noted === made) return;
    this.noted = made;
    this.note.title = [labels.map((label) => `#${label}`).join(" "), run.error].filter(Boolean).join("\n");
    this.note.hidden = run.error === undefined && labels.length === 0;
    const room = run.error === undefined ? LABELS_SHOWN : LABELS_BESIDE_ERROR;
    this.labels.forEach((element, place) => {
      const label = place < room ? labels[place] : undefined;
      element.hidden = label === undefined;
      link(element, label ?? "", label === schedule ? href("schedules", [run.schedule_name ?? ""]) : href("runs", [], { tag: label }));
    });
    say(this.noteRest, labels.length > room ? `+${labels.length - room}` : "");
    say(this.noteText, run.error ?? "");
  }

  /** @param {Run} run */
  fillAge(run) {
    const at = run.rank;
    if (this.age.dataset.at === String(at)) return;
    const stamp = new Date(at * 1000);
    this.age.dataset.at = String(at);
    this.age.title = Number.isNaN(stamp.getTime()) ? "" : dateTime(at);
    say(this.age, ago(now() - at));
  }

  /** What changes as time goes by: silence, and the lengths of what goes on. */
  tick() {
    const run = this.run;
    if (run === null) return;
    const stale = isStale(run);
    const badged = `${run.status} ${stale}`;
    if (this.badged !== badged) {
      this.badged = badged;
      const shown = this.badges.get(badged) ?? [badge(run.status), ...(stale ? [badge("STALE")] : [])];
      if (this.badges.size < BADGES_MAX) this.badges.set(badged, shown);
      this.status.replaceChildren(...shown);
    }
    const times = timesOf(run, now());
    this.track.hidden = times === null;
    if (times === null) {
      say(this.waited, "");
      say(this.ran, "");
      return;
    }
    const bar = barOf(times, this.scale);
    const lengths = `${percent(bar.wait)} ${percent(bar.run)}`;
    if (this.lengths !== lengths) {
      this.lengths = lengths;
      this.waitBar.style.width = percent(bar.wait);
      this.runBar.style.width = percent(bar.run);
    }
    this.runBar.hidden = times.run === null;
    this.track.classList.toggle("over", bar.over);
    const whole = times.live ? Math.floor : Number;
    // Of a run that was taken over, only the last start is known here: what was before is not all waiting.
    say(this.waited, times.run === null ? t("runs.waited", { span: span(whole(times.wait)) })
      : t("runs.started_after", { span: span(times.wait) }));
    say(this.ran, times.run === null ? "" : t("runs.ran", { span: span(whole(times.run)) }));
  }

  /** Whether time changes what it shows. */
  get live() {
    return this.run !== null && this.run.end_time === undefined;
  }
}

/**
 * @param {string} name
 * @param {...import("../lib/dom.js").Child} children
 */
function cell(name, ...children) {
  return h("div", { class: `runs-cell runs-${name}`, role: "gridcell" }, ...children);
}

/**
 * @param {HTMLAnchorElement} element
 * @param {string} text
 * @param {string} address
 */
function link(element, text, address) {
  if (say(element, text)) element.title = text;
  if (element.getAttribute("href") !== address) element.setAttribute("href", address);
}

/**
 * Write a text into the node that is there: a new one would cost the browser three times as much, in a list that flies by.
 * @param {Element} element with a text and nothing else in it
 * @param {string} text
 * @returns {boolean} whether it is another one
 */
function say(element, text) {
  const node = /** @type {Text | null} */ (element.firstChild);
  if ((node?.data ?? "") === text) return false;
  if (node === null) element.append(text);
  else node.data = text;
  return true;
}

/** @param {number} share */
function percent(share) {
  return `${Math.round(share * 1000) / 10}%`;
}

/** The line above the rows. Its words are the legend of the bars, too. */
export class RunHead {
  /** @param {HTMLInputElement | null} all */
  constructor(all) {
    this.scale = h("span", { class: "number dim" });
    this.element = h("div", { class: "runs-row runs-head", role: "row", "aria-rowindex": "1" },
      all ? head("check", all) : null,
      head("status", t("runs.col.status")),
      head("flow", t("runs.col.flow")),
      head("params", t("runs.col.params")),
      head("where", t("runs.col.where")),
      head("times", h("span", { class: "runs-legend", title: t("runs.col.waited.note") }, h("i", { class: "runs-bar-wait" }), t("runs.col.waited"),
        h("i", { class: "runs-bar-run" }), t("runs.col.ran")), this.scale),
      head("when", t("runs.col.when")));
  }

  /** @param {number} scale */
  show(scale) {
    write(this.scale, t("runs.scale", { span: span(scale) }));
  }
}

/**
 * @param {string} name
 * @param {...import("../lib/dom.js").Child} children
 */
function head(name, ...children) {
  return h("div", { class: `runs-cell runs-${name}`, role: "columnheader" }, ...children);
}
