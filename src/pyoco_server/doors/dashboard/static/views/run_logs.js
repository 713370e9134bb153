// The log section of a run's page.

import { h, put, write } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { t } from "../lib/i18n.js";
import { everything, isEverything } from "../lib/log_filter.js";
import { isGap, lineText } from "../lib/log_window.js";
import { button, card, copy, nothing, skeleton } from "../lib/parts.js";
import { isTerminal } from "../lib/run_facts.js";
import { recall, remember } from "../lib/settings.js";
import { LogReader } from "./log_reader.js";
import { LogRows } from "./log_rows.js";
import { LogTools } from "./log_tools.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("./run_kinds.js").RunPage} RunPage */

/** Load the next page this many lines before the edge of the window. */
const NEAR_LINES = 300;
/** Screen readers announce new lines only up to this rate per second. */
const SPOKEN_MAX = 3;
const WRAP = "logs.wrap";

export class LogsSection {
  /** @param {RunPage} page */
  constructor(page) {
    this.page = page;
    /** @type {Run | null} */
    this.run = null;
    this.hasOpened = false;
    this.made = "";
    this.readings = 0;
    this.wantsFocus = false;
    /** Lines added within the current second. */
    this.spoken = { at: 0, count: 0 };
    this.rows = new LogRows({ label: t("logs.lines"), onMove: () => this.fetchMore() });
    this.rows.wraps = recall(WRAP) !== "off";
    this.rows.remake();
    this.tools = new LogTools(page.logFilter);
    this.wrap = button(t("logs.wrap"), () => this.toggleWrap(), { pressed: this.rows.wraps });
    this.toFirst = button(t("logs.first"), () => this.goTo("start"), { kind: "quiet" });
    this.toLast = button(t("logs.last"), () => this.goTo("end"), { kind: "quiet" });
    this.copies = button(t("logs.copy"), () => this.copy(), { icon: "copy", title: t("logs.copy.note") });
    this.note = h("div", { class: "log-note" });
    this.told = h("span", { role: "status" });
    this.counted = h("span", { class: "number" });
    this.foot = h("div", { class: "log-foot dim small" }, this.told, this.counted,
      h("span", { class: "log-moves" }, this.toFirst, this.toLast));
    this.element = card(t("logs.title"), { class: "run-logs", actions: [this.wrap, this.copies] },
      this.tools.element, this.note, this.rows.element, this.foot);
    this.reader = new LogReader(page.id, { onChange: () => this.draw(), isFollowing: () => this.rows.isFollowing });
    this.rows.element.addEventListener("keydown", (event) => this.onKey(event));
    this.unfollow = page.logFilter.follow((filter) => this.ask(filter));
    this.unfollowJumps = page.logJump.follow((jumps) => this.jump(jumps));
    this.looks = new IntersectionObserver((entries) => {
      this.reader.look(entries.at(-1)?.isIntersecting === true);
      this.showNote();
    }, { rootMargin: "300px" });
    this.looks.observe(this.element);
  }

  close() {
    this.looks.disconnect();
    this.unfollow();
    this.unfollowJumps();
    this.tools.close();
    this.rows.close();
    this.reader.stop();
  }

  /** @param {Run} run */
  show(run) {
    this.run = run;
    this.element.hidden = run.redacted === true;
    this.tools.show(run);
    this.rows.element.classList.toggle("log-no-tasks", this.tools.task.hidden);
    this.rows.marksAttempts = (run.attempt ?? 1) > 1 && this.page.logFilter.value.attempt === null;
    this.reader.show(run);
    this.draw();
    if (this.hasOpened) return;
    this.hasOpened = true;
    this.jump(this.page.logJump.value); // the address has a log filter
  }

  /** @param {import("../lib/log_filter.js").LogFilter} filter */
  ask(filter) {
    this.rows.search = filter.search;
    this.reader.ask(filter, "end");
  }

  /** @param {number} jumps */
  jump(jumps) {
    if (jumps === 0 || !this.hasOpened) return;
    // After layout: other sections are drawn in the same task.
    requestAnimationFrame(() => this.element.scrollIntoView({ block: "start" }));
    this.wantsFocus = true;
    this.takeFocus();
  }

  /** Focus the log after a jump, as soon as it has lines. */
  takeFocus() {
    if (!this.wantsFocus || this.rows.element.hidden) return;
    this.wantsFocus = false;
    this.rows.element.focus({ preventScroll: true });
  }

  /** @param {"start" | "end"} end */
  goTo(end) {
    const { window } = this.reader;
    if (end === "start" ? window.hasEarlier : window.hasLater) this.reader.ask(this.page.logFilter.value, end);
    else if (end === "start") this.rows.toStart();
    else this.rows.toEnd();
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    this.goTo(event.key === "Home" ? "start" : "end");
  }

  toggleWrap() {
    this.rows.wraps = !this.rows.wraps;
    this.wrap.setAttribute("aria-pressed", String(this.rows.wraps));
    remember(WRAP, this.rows.wraps ? null : "off");
    this.rows.remake();
  }

  async copy() {
    await copy(this.reader.window.lines.map(lineText).join("\n"));
  }

  fetchMore() {
    const { reader, rows } = this;
    const count = rows.lines.length;
    if (count === 0 || !reader.isReady || rows.lines !== reader.window.lines) return;
    const { scrollTop, clientHeight } = rows.element;
    if (reader.window.hasEarlier && rows.indexAt(scrollTop) < NEAR_LINES) void reader.earlier();
    else if (reader.window.hasLater && rows.indexAt(scrollTop + clientHeight) > count - NEAR_LINES) void reader.later();
  }

  draw() {
    const { reader, rows } = this;
    const { lines } = reader.window;
    rows.element.setAttribute("aria-busy", String(!reader.isReady));
    if (lines !== rows.lines) {
      this.speak(lines.length - rows.lines.length);
      rows.element.hidden = lines.length === 0;
      const isAnew = this.readings !== reader.readings;
      this.readings = reader.readings;
      if (isAnew) rows.isFollowing = reader.from === "end";
      rows.show(lines);
      if (isAnew && reader.from === "start") rows.toStart();
      this.takeFocus();
    }
    rows.hasEnd = !reader.window.hasLater;
    this.showNote();
    this.showFoot();
  }

  /** Let screen readers announce new lines, unless they arrive too fast. @param {number} more */
  speak(more) {
    const at = performance.now();
    if (at - this.spoken.at > 1000) this.spoken = { at, count: 0 };
    this.spoken.count += Math.max(0, more);
    const isLive = this.reader.streaming !== null && this.rows.isFollowing && this.spoken.count <= SPOKEN_MAX;
    this.rows.element.setAttribute("aria-live", isLive ? "polite" : "off");
  }

  showNote() {
    const { reader } = this;
    const isEmpty = reader.window.lines.length === 0;
    const isAll = isEverything(this.page.logFilter.value);
    const isGone = this.run?.gone_at !== undefined;
    const made = JSON.stringify([isEmpty, reader.refusal, reader.isReady, reader.isLooked, reader.isOff, isAll, isGone, this.run?.status]);
    if (made === this.made) return;
    this.made = made;
    if (reader.refusal !== "") put(this.note, h("p", { class: "mark" }, `${t("logs.refused")} ${reader.refusal}`));
    else if (!isEmpty) put(this.note);
    else if (!reader.isReady && (!reader.isLooked || isGone)) put(this.note); // loaded once it is on the screen
    else if (!reader.isReady) put(this.note, h("p", { class: "unseen" }, t("logs.loading")), skeleton(3));
    else if (reader.isOff) put(this.note, h("p", { class: "dim" }, t("logs.off")));
    else if (!isAll) put(this.note, nothing(t("logs.no_match"), button(t("logs.clear"), () => this.page.logFilter.set(everything))));
    else put(this.note, h("p", { class: "dim" }, t(this.whyEmpty())));
  }

  whyEmpty() {
    const status = String(this.run?.status);
    if (isTerminal(status)) return "logs.none";
    return status === "PENDING" ? "logs.none.pending" : "logs.none.yet";
  }

  showFoot() {
    const { reader, rows } = this;
    const { lines, hasEarlier, hasLater } = reader.window;
    const isEmpty = lines.length === 0;
    this.foot.hidden = isEmpty;
    this.copies.disabled = isEmpty;
    this.tools.element.hidden = isEmpty && isEverything(this.page.logFilter.value);
    if (isEmpty) return;
    const isLive = !reader.isComplete && !isTerminal(String(this.run?.status));
    this.told.hidden = !isLive;
    write(this.told, isLive ? t(rows.isFollowing && !hasLater ? "logs.live" : "logs.paused") : "");
    const n = count(lines.filter((line) => !isGap(line)).length);
    write(this.counted, t(hasEarlier || hasLater ? "logs.part" : "logs.shown", { n }));
  }
}
