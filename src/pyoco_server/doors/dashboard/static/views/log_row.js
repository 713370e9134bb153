// Renders one line of a log, as text nodes only.

import { piecesOf } from "../lib/ansi.js";
import { h } from "../lib/dom.js";
import { bytes, count, dateTime, preciseTime } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { isGap } from "../lib/log_window.js";

/** @typedef {import("../lib/wire.js").LogLine} LogLine */
/** @typedef {{ beginsAttempt: boolean, search: string }} How */

const STREAMS = new Set(["stdout", "stderr", "log", "system"]);
const LEVELS = new Set(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]);

/**
 * @param {LogLine} line
 * @param {How} how
 */
export function makeRow(line, how) {
  const kind = isGap(line) ? "log-gap" : `log-${STREAMS.has(line.stream) ? line.stream : "system"}`;
  const level = line.level && LEVELS.has(line.level) ? ` log-${line.level.toLowerCase()}` : "";
  return h("div", { class: `log-row ${kind}${level}`, "data-id": line.id },
    how.beginsAttempt ? h("div", { class: "log-attempt" }, t("run.timeline.attempt", { n: line.attempt })) : null,
    h("div", { class: "log-line" }, isGap(line) ? gap(line) : [...front(line), body(line, how.search)]));
}

/** @param {LogLine} line */
function front(line) {
  const task = typeof line.task === "string" ? line.task : "";
  return [
    h("span", { class: "log-number", "aria-hidden": "true" }, String(line.seq)),
    h("time", { class: "log-time", title: dateTime(line.ts) }, preciseTime(line.ts)), " ",
    h("span", { class: "log-task", title: task || null }, task || "–"), " ",
    line.level ? h("span", { class: "log-level", title: line.logger || null }, line.level)
      : h("span", { class: "unseen" }, wordFor("logs.stream", line.stream)), " ",
  ];
}

/**
 * @param {LogLine} line
 * @param {string} search
 */
function body(line, search) {
  return h("span", { class: "log-text" }, drawn(line.text, search),
    line.cut_bytes ? h("span", { class: "log-cut" }, ` ${t("logs.cut", { size: bytes(line.cut_bytes) })}`) : null,
    line.exc ? h("span", { class: "log-exception" }, line.exc.split("\n").flatMap((each) => ["\n", ...drawn(each, search)])) : null);
}

/** @param {LogLine} line */
function gap(line) {
  const size = typeof line.missing_bytes === "number" && line.missing_bytes > 0 ? ` (${bytes(line.missing_bytes)})` : "";
  const words = typeof line.missing_lines === "number" ? t("logs.gap", { n: count(line.missing_lines), size })
    : t("logs.gap.unknown", { size });
  return h("span", { class: "log-text" }, `${words} ${wordFor("logs.why", String(line.why))}`);
}

/**
 * @param {string} text
 * @param {string} search
 * @returns {(Node | string)[]}
 */
function drawn(text, search) {
  return piecesOf(text).map((piece) => {
    const marked = piece.isControl ? [piece.text] : highlighted(piece.text, search);
    if (piece.look === null && !piece.isControl) return marked;
    const style = /** @type {Record<string, string>} */ ({});
    if (piece.look?.ink) style["--ansi-ink"] = piece.look.ink;
    if (piece.look?.ground) style["--ansi-ground"] = piece.look.ground;
    const classes = [...(piece.look?.classes ?? []), piece.isControl ? "log-control" : "",
      piece.look?.ink ? "ansi-ink" : "", piece.look?.ground ? "ansi-ground" : ""];
    return [h("span", { class: classes.filter(Boolean).join(" "), style }, ...marked)];
  }).flat();
}

/**
 * @param {string} text
 * @param {string} search
 * @returns {(Node | string)[]}
 */
function highlighted(text, search) {
  if (search === "") return [text];
  const [low, wanted] = [text.toLowerCase(), search.toLowerCase()];
  if (low.length !== text.length) return [text]; // lower case changed the length, so offsets would not match
  const parts = [];
  let at = 0;
  for (let found = low.indexOf(wanted); found >= 0; found = low.indexOf(wanted, at)) {
    if (found > at) parts.push(text.slice(at, found));
    at = found + wanted.length;
    parts.push(h("mark", null, text.slice(found, at)));
  }
  if (at < text.length) parts.push(text.slice(at));
  return parts;
}
