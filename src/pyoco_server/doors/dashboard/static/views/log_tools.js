// The filter controls of a log: task, attempt, level, stream and text.

import { h, put } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { LEVELS, NO_TASK, SEARCH_MAX, STREAMS } from "../lib/log_filter.js";
import { refill } from "../lib/parts.js";
import { isPack, isProgram, taskNames } from "../lib/run_facts.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/log_filter.js").LogFilter} LogFilter */
/** @typedef {import("../lib/i18n.js").TextKey} TextKey */

/** Debounce for the search field. */
const TYPING_MS = 350;

export class LogTools {
  /** @param {import("../lib/events.js").Signal<LogFilter>} filter */
  constructor(filter) {
    this.filter = filter;
    this.search = h("input", {
      type: "search", placeholder: t("logs.search"), "aria-label": t("logs.search"), autocomplete: "off", spellcheck: "false",
      maxlength: SEARCH_MAX, dir: "auto", oninput: () => this.typed(), onchange: () => this.submit(),
    });
    this.task = this.select(t("logs.task"), (value) => ({ task: value || null }));
    this.attempt = this.select(t("logs.attempt"), (value) => ({ attempt: value === "" ? null : Number(value) }));
    this.level = this.select(t("logs.level"), (value) => ({ level: value || null }));
    put(this.level, h("option", { value: "" }, t("logs.level.all")), ...LEVELS.slice(1).map((level, at) => h("option", { value: level },
      at === LEVELS.length - 2 ? level : t("logs.level.least", { level }))));
    this.chips = new Map(STREAMS.map((stream) => [stream, h("button", {
      type: "button", class: "chip", onclick: () => this.toggle(stream),
    }, t(/** @type {TextKey} */ (`logs.stream.${stream}`)))]));
    const streams = h("div", { class: "chips", role: "group", "aria-label": t("logs.streams") }, ...this.chips.values());
    this.element = h("div", { class: "log-tools" }, this.search, this.task, this.attempt, this.level, streams);
    this.unfollow = filter.follow((value) => this.mark(value));
  }

  close() {
    this.unfollow();
    clearTimeout(this.typing);
  }

  /**
   * @param {string} label
   * @param {(value: string) => Partial<LogFilter>} changeOf
   */
  select(label, changeOf) {
    const element = h("select", { "aria-label": label, title: label, onchange: () => this.change(changeOf(element.value)) });
    return element;
  }

  /** @param {Run} run */
  show(run) {
    const { task, attempt } = this.filter.value;
    const names = isProgram(run) || isPack(run) ? [] : taskNames(run);
    const tasks = task === null || task === NO_TASK || names.includes(task) ? names : [...names, task];
    this.task.hidden = tasks.length === 0 && task === null;
    refill(this.task, tasks, () => [h("option", { value: "" }, t("logs.task.all")),
      ...tasks.map((name) => h("option", { value: name }, name)), h("option", { value: NO_TASK }, t("logs.task.none"))]);
    const count = Math.max(typeof run.attempt === "number" ? run.attempt : 1, attempt ?? 1);
    const numbers = Array.from({ length: Math.min(count, 1000) }, (_, at) => count - at);
    this.attempt.hidden = count < 2;
    refill(this.attempt, numbers, () => [h("option", { value: "" }, t("logs.attempt.all")),
      ...numbers.map((n) => h("option", { value: n }, t("run.timeline.attempt", { n })))]);
    this.mark(this.filter.value);
  }

  /** @param {LogFilter} filter */
  mark(filter) {
    if (document.activeElement !== this.search || filter.search === "") this.search.value = filter.search;
    this.task.value = filter.task ?? "";
    this.attempt.value = filter.attempt === null ? "" : String(filter.attempt);
    this.level.value = filter.level ?? "";
    for (const [stream, chip] of this.chips) chip.setAttribute("aria-pressed", String(filter.streams.includes(stream)));
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.submit(), TYPING_MS);
  }

  submit() {
    clearTimeout(this.typing);
    if (this.search.value !== this.filter.value.search) this.change({ search: this.search.value });
  }

  /** @param {string} stream */
  toggle(stream) {
    const { streams } = this.filter.value;
    const wanted = STREAMS.filter((each) => streams.includes(each) !== (each === stream));
    this.change({ streams: wanted.length === STREAMS.length ? [] : wanted });
  }

  /** @param {Partial<LogFilter>} change */
  change(change) {
    this.filter.set({ ...this.filter.value, ...change });
  }
}
