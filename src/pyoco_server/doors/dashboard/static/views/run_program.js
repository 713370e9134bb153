// A program's run: how it ended, what it printed, and what it left behind.

import { download, get } from "../lib/api.js";
import { act, confirm, mayAct } from "../lib/act.js";
import { h, put, write } from "../lib/dom.js";
import { list } from "../lib/fleet.js";
import { bytes, span } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { actButton, card, commandBox, facts, longText, refill } from "../lib/parts.js";
import { leftBytes } from "../lib/programs.js";
import { href } from "../lib/router.js";
import { isTerminal, textOf } from "../lib/run_facts.js";
import { save } from "../lib/save.js";
import { toast } from "../lib/toast.js";
import { requeue } from "./letter_detail.js";
import { lastLines } from "./run_error.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("./run_kinds.js").RunPage} RunPage */

/** A larger one is better fetched by a program: here it would be in memory, whole. */
const LARGE_BYTES = 200 * 1024 * 1024;
const ARCHIVE = "output.zip";

/** How it ended, in words; for one that failed, its dead letter and the way back from there. */
export class ProgramEndSection {
  /** @param {RunPage} page */
  constructor(page) {
    this.page = page;
    this.id = page.id;
    this.stopping = new AbortController();
    this.body = h("div", { class: "run-error" });
    this.element = card(t("program.end"), {}, this.body);
    this.element.hidden = true;
  }

  close() {
    this.stopping.abort();
  }

  /** @param {Run} run */
  show(run) {
    this.element.hidden = !isTerminal(run.status);
    if (this.element.hidden) return;
    this.element.classList.toggle("run-error-card", run.status === "FAILED");
    const code = textOf(run.error_code);
    const exit = typeof run.exit_code === "number" ? run.exit_code : null;
    // The letter is written right after the end, which is the last thing the page hears of: one that is due is there.
    const hasLetter = (run.dlq_due === true || run.dlq_done === true) && run.gone_at === undefined;
    refill(this.body, [run.status, code, exit, run.error, run.run_seconds, hasLetter], () => [
      h("p", { class: "program-end" }, endWords(run.status, code, exit)),
      run.error ? longText(textOf(run.error)) : null,
      facts([
        [t("program.exit_code"), exit === null ? t("program.exit_code.none") : String(exit)],
        [t("program.error_code"), code === "" ? null : h("code", null, code)],
        [t("program.run_seconds"), typeof run.run_seconds === "number" ? span(run.run_seconds) : null],
      ]),
      run.status === "FAILED" ? lastLines(this.page, {}) : null,
      hasLetter ? this.letter() : null,
    ]);
  }

  letter() {
    return h("div", { class: "row-actions" },
      h("a", { href: href("letters", [], { run_id: this.id }) }, t("program.letter")),
      mayAct ? actButton(t("letters.requeue"), () => this.requeue(), { icon: "repeat", title: t("letters.requeue_note") }) : null);
  }

  async requeue() {
    const page = await act(() => get("dlq", { run_id: this.id, limit: 1 }, this.stopping.signal));
    if (page === undefined) return;
    const [letter] = list(page?.items);
    if (letter === undefined) toast(t("letters.gone"), "warning");
    else await requeue(String(letter.id), this.stopping.signal);
  }
}

/**
 * @param {string} status
 * @param {string} code
 * @param {number | null} exit
 */
function endWords(status, code, exit) {
  if (status === "COMPLETED") return t("program.ended.well");
  if (code === "EXIT_NONZERO" && exit !== null) return t("program.ended.code", { n: exit });
  if (code === "SIGNALED" && exit !== null) return t("program.ended.signal", { n: -exit });
  const words = wordFor("program.error", code);
  return words === code ? wordFor("status", status) : words;
}

/** What it printed: the end of it here, all of it as a file. Text, whatever is in it. */
export class ProgramOutputSection {
  /** @param {RunPage} page */
  constructor(page) {
    this.streams = [new Stream(page.id, "stdout"), new Stream(page.id, "stderr")];
    this.element = h("div", { class: "program-streams" }, this.streams.map((each) => each.element));
  }

  close() {
    for (const each of this.streams) each.fetching.close();
  }

  /** @param {Run} run */
  show(run) {
    for (const each of this.streams) each.show(run);
  }
}

class Stream {
  /**
   * @param {string} id
   * @param {"stdout" | "stderr"} name
   */
  constructor(id, name) {
    this.name = name;
    this.fetching = new Fetching(id, `${name}.txt`);
    this.body = h("div");
    this.element = card(t(`program.${name}`), { class: "program-stream", actions: this.fetching.element }, this.body);
  }

  /** @param {Run} run */
  show(run) {
    const ended = isTerminal(run.status);
    const tail = textOf(run[`${this.name}_tail`]);
    const isCut = run[`${this.name}_truncated`] === true;
    const size = leftBytes(run, `${this.name}.txt`);
    this.fetching.show(ended && run.gone_at === undefined && tail !== "" ? size ?? new Blob([tail]).size : null);
    refill(this.body, [tail, isCut, size, ended], () => {
      if (tail === "") return [h("p", { class: "dim" }, t(ended ? "program.output.none" : "program.output.later"))];
      const notes = [size === null ? null : t("program.output.tail", { size: bytes(size) }), isCut ? t("program.output.cut") : null];
      return [h("p", { class: "mark" }, notes.filter(Boolean).join(" ")), longText(tail)];
    });
  }
}

/** The archive with everything that the program wrote into its directory. */
export class ProgramArchiveSection {
  /** @param {RunPage} page */
  constructor(page) {
    this.id = page.id;
    this.fetching = new Fetching(page.id, ARCHIVE);
    this.body = h("div", { class: "stack" });
    this.element = card(t("program.archive"), { actions: this.fetching.element }, this.body);
  }

  close() {
    this.fetching.close();
  }

  /** @param {Run} run */
  show(run) {
    const ended = isTerminal(run.status);
    const size = ended && run.gone_at === undefined ? leftBytes(run, ARCHIVE) : null;
    this.fetching.show(size);
    refill(this.body, [size, ended], () => (size === null
      ? [h("p", { class: "dim" }, t(ended ? "program.archive.none" : "program.archive.later"))]
      : [h("p", null, h("code", null, ARCHIVE), ` · ${bytes(size)}`), commandBox(artifactsCommand(this.id))]));
  }
}

/** @param {string} id */
function artifactsCommand(id) {
  return `pyoco-client program artifacts ${id} --out results`;
}

/** A button that brings a file of the run onto the reader's disk, with progress: a link could not carry the key. */
class Fetching {
  /**
   * @param {string} id
   * @param {string} name
   */
  constructor(id, name) {
    this.id = id;
    this.name = name;
    this.size = 0;
    this.stopping = new AbortController();
    this.progress = h("span", { class: "small dim number", role: "status" });
    this.button = actButton(t("program.download", { name }), () => this.bring(), { icon: "download" });
    this.element = h("div", { class: "chips" }, this.progress, this.button);
    this.element.hidden = true;
  }

  close() {
    this.stopping.abort();
  }

  /** @param {number | null} size null: there is nothing to fetch */
  show(size) {
    this.size = size ?? 0;
    this.element.hidden = size === null;
  }

  async bring() {
    if (this.size > LARGE_BYTES) {
      const sure = await confirm({
        title: t("wheels.large", { size: bytes(this.size) }), yes: t("wheels.download_anyway"),
        body: [h("p", null, t("wheels.large_note")), commandBox(artifactsCommand(this.id))],
      });
      if (sure === null) return;
    }
    const { signal } = this.stopping;
    const path = `runs/${encodeURIComponent(this.id)}/artifacts/${this.name}`;
    const file = await act(() => download(path, (loaded) => {
      write(this.progress, t("wheels.percent", { n: Math.floor((100 * loaded) / Math.max(1, this.size)) }));
    }, signal).catch((error) => {
      if (signal.aborted) return null;
      throw error;
    }));
    put(this.progress);
    if (file) save(file, `${this.id}-${this.name}`);
  }
}
