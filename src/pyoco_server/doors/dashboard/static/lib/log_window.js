// The part of a log that is held in memory: consecutive lines, bounded in number and size. No DOM.

import { plain } from "./ansi.js";

/** @typedef {import("./wire.js").LogLine} LogLine */

export const LINES_MAX = 10_000;
/** A bound besides the number of lines: a line may have 16 KiB. */
export const CHARACTERS_MAX = 8_000_000;

export class LogWindow {
  /** @param {{ lines: number, characters: number }} [max] */
  constructor(max = { lines: LINES_MAX, characters: CHARACTERS_MAX }) {
    this.max = max;
    /** @type {LogLine[]} replaced, never mutated */
    this.lines = [];
    this.characters = 0;
    /** Whether there are matching lines before and after the window. */
    this.hasEarlier = false;
    this.hasLater = false;
  }

  clear() {
    this.lines = [];
    this.characters = 0;
    this.hasEarlier = false;
    this.hasLater = false;
  }

  /** @returns {LogLine | undefined} */
  get first() {
    return this.lines[0];
  }

  /** @returns {LogLine | undefined} */
  get last() {
    return this.lines.at(-1);
  }

  /** @param {LogLine[]} more */
  hasRoomFor(more) {
    return this.lines.length + more.length <= this.max.lines && this.characters + charactersIn(more) <= this.max.characters;
  }

  /**
   * Add lines at the end and drop excess lines from the start. Lines already present are ignored. O(lines).
   * @param {LogLine[]} more
   */
  append(more) {
    const { last } = this;
    const fresh = last === undefined ? more : more.filter((line) => isBefore(last, line));
    this.lines = [...this.lines, ...fresh];
    this.characters += charactersIn(fresh);
    const kept = this.lines.slice(this.excess(this.lines));
    if (kept.length < this.lines.length) this.hasEarlier = true;
    this.keep(kept);
  }

  /**
   * Add lines at the start and drop excess lines from the end.
   * @param {LogLine[]} more
   */
  prepend(more) {
    const { first } = this;
    const fresh = first === undefined ? more : more.filter((line) => isBefore(line, first));
    this.lines = [...fresh, ...this.lines];
    this.characters += charactersIn(fresh);
    const kept = this.lines.slice(0, this.lines.length - this.excess([...this.lines].reverse()));
    if (kept.length < this.lines.length) this.hasLater = true;
    this.keep(kept);
  }

  /** @param {LogLine[]} kept */
  keep(kept) {
    if (kept.length === this.lines.length) return;
    this.lines = kept;
    this.characters = charactersIn(kept);
  }

  /**
   * The number of lines to drop from the start of the list.
   * @param {LogLine[]} lines
   */
  excess(lines) {
    let count = Math.max(0, lines.length - this.max.lines);
    let characters = this.characters - charactersIn(lines.slice(0, count));
    for (; characters > this.max.characters && count < lines.length - 1; count += 1) {
      characters -= charactersOf(/** @type {LogLine} */ (lines[count]));
    }
    return count;
  }
}

/** @param {LogLine} line */
function charactersOf(line) {
  return line.text.length + (line.exc?.length ?? 0) + 100; // overhead per line
}

/** @param {LogLine[]} lines */
function charactersIn(lines) {
  return lines.reduce((sum, line) => sum + charactersOf(line), 0);
}

/**
 * Lines are ordered by attempt, then by sequence number.
 * @param {LogLine} one
 * @param {LogLine} other
 */
export function isBefore(one, other) {
  return one.attempt === other.attempt ? one.seq < other.seq : one.attempt < other.attempt;
}

/** @param {LogLine} line */
export function isGap(line) {
  return line.event === "gap";
}

/**
 * Validate a line from the wire. Returns null if it is not one.
 * @param {unknown} told
 * @returns {LogLine | null}
 */
export function readLine(told) {
  const line = /** @type {Partial<LogLine> | null} */ (told);
  const isOne = typeof line === "object" && line !== null && typeof line.text === "string" && typeof line.id === "string" &&
    Number.isSafeInteger(line.attempt) && Number.isSafeInteger(line.seq);
  return isOne ? /** @type {LogLine} */ (line) : null;
}

/**
 * Format a line like `GET /runs/{id}/logs?format=text`: time, task, stream, text, with control characters escaped.
 * @param {LogLine} line
 */
export function lineText(line) {
  const stamp = new Date(line.ts * 1000);
  const at = Number.isNaN(stamp.getTime()) ? "-" : stamp.toISOString();
  const front = `${at} ${line.task === null || line.task === undefined ? "-" : plain(line.task)} ${line.stream}`;
  const more = line.exc ? line.exc.split("\n").map((each) => `\n${front} ${plain(each)}`).join("") : "";
  return `${front} ${plain(line.text)}${line.cut_bytes ? ` [${line.cut_bytes} bytes cut]` : ""}${more}`;
}
