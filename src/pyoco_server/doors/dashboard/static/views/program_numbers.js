// The metrics of programs as numbers: the same that Prometheus reads.

import { getText } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { count, span } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { refill } from "../lib/parts.js";
import { poll } from "../lib/poll.js";
import { readFigures } from "../lib/programs.js";

/** @typedef {import("../lib/programs.js").Sample} Sample */

/** As often as Prometheus would. */
const POLL_SECONDS = 15;
const LINES_MAX = 8;
/** What the tables do not tell already. Counted since the records that there are. */
const SHOWN = ["jobs_total", "retries_total", "dlq_total", "dlq_messages", "run_seconds", "run_seconds_p95", "stale_results_total",
  "duplicate_submits_total", "protocol_errors_total", "connections", "corrupt_records"];
const SECONDS = new Set(["run_seconds", "run_seconds_p95"]);

export class ProgramNumbers {
  constructor() {
    this.cards = new Map(SHOWN.map((name) => [name, h("div")]));
    this.element = h("section", { class: "program-part", "aria-label": t("programs.numbers") },
      h("h2", null, t("programs.numbers")), h("p", { class: "dim small" }, t("programs.numbers.note")),
      h("div", { class: "program-numbers" }, [...this.cards].map(([name, body]) => h("div", { class: "program-number" },
        h("h3", null, wordFor("programs.metric", name)), h("code", { class: "dim small" }, `pyoco_exec_${name}`), body))));
    /** @type {import("../lib/poll.js").Poll | null} */
    this.poll = null;
  }

  /** Once there is something to look at. */
  start() {
    this.poll ??= poll(POLL_SECONDS, async (signal) => this.show(readFigures(await getText("metrics", signal))));
  }

  close() {
    this.poll?.stop();
  }

  /** @param {Map<string, Sample[]>} figures */
  show(figures) {
    for (const [name, body] of this.cards) {
      const samples = name === "run_seconds" ? means(figures) : figures.get(name) ?? [];
      refill(body, samples, () => [linesOf(name, samples)]);
    }
  }
}

/**
 * Of a histogram: the mean.
 * @param {Map<string, Sample[]>} figures
 * @returns {Sample[]}
 */
function means(figures) {
  const counts = new Map((figures.get("run_seconds_count") ?? []).map((each) => [each.labels.exec, each.value]));
  return (figures.get("run_seconds_sum") ?? []).map((each) => ({
    labels: each.labels, value: each.value / Math.max(1, counts.get(each.labels.exec) ?? 0),
  }));
}

/**
 * @param {string} name
 * @param {Sample[]} samples
 */
function linesOf(name, samples) {
  if (samples.length === 0) return h("p", { class: "dim" }, t("programs.numbers.none"));
  const largest = [...samples].sort((a, b) => b.value - a.value);
  const left = largest.length - LINES_MAX;
  const list = h("dl", { class: "program-lines" }, largest.slice(0, LINES_MAX).map((each) => h("div", null,
    h("dt", null, labelWords(each.labels)), h("dd", { class: "number" }, SECONDS.has(name) ? span(each.value) : count(each.value)))));
  return h("div", null, list, left > 0 ? h("p", { class: "dim small" }, t("programs.more", { n: count(left) })) : null);
}

/** @param {Record<string, string>} labels */
function labelWords(labels) {
  const words = Object.entries(labels).filter(([name]) => name !== "group").map(([name, value]) =>
    (name === "status" ? wordFor("status", value) : name === "reason" ? reasonWords(value) : value));
  if (labels.group !== undefined && labels.group !== "default") words.unshift(labels.group);
  return words.join(" · ") || t("programs.numbers.all");
}

/** Of a dead letter, or of an attempt that was put back. @param {string} reason */
function reasonWords(reason) {
  const words = wordFor("letters.reason", reason);
  return words === reason ? wordFor("run.why", reason) : words;
}
