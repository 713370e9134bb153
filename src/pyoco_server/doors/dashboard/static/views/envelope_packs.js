// What each pack found, the way one wants to read it. What is not known here is shown as a tree.

import { h } from "../lib/dom.js";
import { failedFirst, movedTo, plain, share } from "../lib/envelope.js";
import { count } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { isObject, textOf } from "../lib/run_facts.js";
import { ocrParts } from "./envelope_ocr.js";
import { addressOf, bar, moved, part, prose, table, verdict } from "./envelope_parts.js";
import { listed, tree } from "./envelope_tree.js";

/** @typedef {import("../lib/dom.js").Child} Child */
/** @typedef {import("./envelope_parts.js").Offer} Offer */
/** @typedef {Record<string, unknown>} Data */
/** @typedef {{ known: string[], show: (data: Data, offer: Offer, meta: Data) => Child[] }} PackView */

/** Of what should be a figure. */
const WORD_MAX = 40;

/** @type {Map<string, PackView>} */
const PACKS = new Map([
  ["decision", { known: ["answer_text", "confidence"], show: decisionParts }],
  ["url", { known: ["results"], show: urlParts }],
  ["ocr", { known: ["texts", "notes"], show: ocrParts }],
  ["compliance", { known: ["verdict", "findings"], show: complianceParts }],
  ["eval", { known: ["total", "passed", "score", "results"], show: evalParts }],
]);

/**
 * The data of an envelope, and what its logs say.
 * @param {Data} envelope
 * @param {Offer} offer
 * @returns {Child[]}
 */
export function dataParts(envelope, offer) {
  const data = isObject(envelope.data) ? envelope.data : {};
  const meta = isObject(envelope.meta) ? envelope.meta : {};
  const view = PACKS.get(textOf(envelope.pack_type));
  // A pack of this name that left something else is none that we know.
  const known = view?.known.some((name) => Object.hasOwn(data, name)) ? view : undefined;
  const rest = Object.fromEntries(Object.entries(data).filter(([name]) => !known?.known.includes(name)));
  const hasRest = Object.keys(rest).length > 0;
  const logs = isObject(envelope.logs) ? envelope.logs : {};
  return [
    ...(known ? known.show(data, offer, meta) : []),
    known === undefined ? part(t("envelope.data"), tree(data, offer)) : null,
    known && hasRest ? part(t("envelope.rest"), tree(rest, offer)) : null,
    logPart(t("envelope.discarded"), logs.discard_log, false),
    logPart(t("envelope.blocked"), logs.blocked_log, true),
  ];
}

/**
 * @param {Data} data
 * @param {Offer} offer
 */
function decisionParts(data, offer) {
  const file = movedTo(data.answer_text);
  return [
    part(t("envelope.answer"), file === null ? prose(data.answer_text, { class: "env-answer" }) : moved(file, offer)),
    share(data.confidence) === null ? null : part(t("envelope.confidence"), bar(data.confidence, t("envelope.confidence"))),
  ];
}

/**
 * @param {Data} data
 * @param {Offer} offer
 */
function urlParts(data, offer) {
  const title = t("envelope.url.results");
  return [part(title, listed(data.results, offer, (rows) => table(title, [
    { name: t("envelope.url.page"), class: "env-wide", show: urlPage },
    { name: t("envelope.url.status"), class: "number", show: (row) => statusOf(row.status_code) },
    { name: t("envelope.url.type"), show: (row) => plain(row.content_type).slice(0, 100) || "–" },
    { name: t("envelope.url.flags"), show: (row) => flagsOf(row.flags) },
  ], rows)))];
}

/** @param {Data} row */
function urlPage(row) {
  const title = plain(row.title).trim();
  const excerpt = textOf(row.text_excerpt);
  const [first, last] = [textOf(row.url), textOf(row.final_url)];
  return [
    title === "" ? null : h("bdi", { class: "env-title" }, title.slice(0, 300)),
    h("div", { class: "env-way" }, addressOf(first),
      last === "" || last === first ? null : h("span", null, h("span", { class: "unseen" }, t("envelope.url.led_to")),
        h("span", { "aria-hidden": "true" }, "→ "), addressOf(last))),
    excerpt === "" ? null : h("details", null, h("summary", null, t("envelope.url.excerpt")), prose(excerpt, { class: "small" })),
  ];
}

/** @param {unknown} code */
function statusOf(code) {
  const isGood = typeof code === "number" && code >= 200 && code < 300;
  return h("span", { class: isGood ? "env-good" : "env-bad" }, plain(code).slice(0, WORD_MAX) || "–");
}

/** @param {unknown} flags */
function flagsOf(flags) {
  if (!Array.isArray(flags) || flags.length === 0) return "–";
  return flags.slice(0, 20).map((each) => h("span", { class: "tag-note" }, wordFor("envelope.flag", plain(each).slice(0, 60))));
}

/**
 * @param {string} title
 * @param {unknown} lines
 * @param {boolean} hasAddress
 */
function logPart(title, lines, hasAddress) {
  const rows = Array.isArray(lines) ? lines.filter(isObject) : [];
  if (rows.length === 0) return null;
  return part(`${title} (${count(rows.length)})`, table(title, [
    { name: t("envelope.url.page"), class: "env-wide", show: (/** @type {Data} */ row) => addressOf(row.url) },
    ...(hasAddress ? [{ name: t("envelope.url.ip"), show: (/** @type {Data} */ row) => h("code", null, plain(row.resolved_ip) || "–") }] : []),
    { name: t("envelope.url.why"), show: (/** @type {Data} */ row) => reasonOf(row.reason) },
  ], rows));
}

/** @param {unknown} reason */
function reasonOf(reason) {
  const code = plain(reason).slice(0, 100);
  const words = wordFor("envelope.why", code);
  return words === code ? h("code", null, code) : [`${words} `, h("code", { class: "dim small" }, code)];
}

/**
 * @param {Data} data
 * @param {Offer} offer
 */
function complianceParts(data, offer) {
  const title = t("envelope.compliance.findings");
  return [
    part(t("envelope.compliance.verdict"), data.verdict === "PASS" || data.verdict === "FAIL"
      ? h("p", { class: "env-verdict" }, verdict(data.verdict === "PASS")) : prose(data.verdict)),
    part(title, listed(data.findings, offer, (rows) => table(title, [
      { name: t("envelope.compliance.rule"), class: "env-wide", show: (row) => h("bdi", null, plain(row.rule_id)) },
      { name: t("envelope.outcome"), show: (row) => verdict(row.passed === true) },
      { name: t("envelope.compliance.count"), class: "number", show: (row) => figure(row.count) },
      { name: t("envelope.compliance.offset"), class: "number", show: (row) => figure(row.first_offset) },
    ], rows))),
  ];
}

/**
 * @param {Data} data
 * @param {Offer} offer
 */
function evalParts(data, offer) {
  const title = t("envelope.eval.cases");
  return [
    part(t("envelope.eval.score"), h("p", { class: "env-score" },
      h("strong", { class: "number" }, plain(data.score).slice(0, WORD_MAX) || "–"), bar(data.score, t("envelope.eval.score")),
      h("span", null, t("envelope.eval.passed", { n: figure(data.passed), all: figure(data.total) })))),
    part(title, h("p", { class: "dim small" }, t("envelope.eval.order")),
      listed(data.results, offer, (rows) => table(title, [
        { name: t("envelope.eval.case"), class: "env-wide", show: (row) => h("bdi", null, plain(row.id).slice(0, 2000)) },
        { name: t("envelope.outcome"), show: (row) => verdict(row.passed === true) },
      ], /** @type {Data[]} */ (failedFirst(rows))))),
  ];
}

/** @param {unknown} value */
function figure(value) {
  return typeof value === "number" && Number.isFinite(value) ? count(value) : plain(value).slice(0, WORD_MAX) || "–";
}
