// What needs attention, without the page: what a finding is about, where it leads, and whether the reader has put it
// aside. The gateway says what is urgent and in which words.

import { href } from "./router.js";

/**
 * @typedef {object} Finding
 * @property {string} kind
 * @property {"danger" | "warning"} level
 * @property {number} count
 * @property {string} [message]
 * @property {string} [message_ja]
 * @property {Record<string, unknown>} facts
 */
/**
 * What was put aside: how bad it was then, and when it was last there.
 * @typedef {Record<string, { count: number, level: string, seenAt: number }>} Aside
 */

const FINDINGS_MAX = 50;
const ASIDE_MAX = 200;
/** What was away for longer has come anew, and is shown again. */
const AWAY_SECONDS = 180;

/**
 * The findings of an answer, dangers first. What is not one is left out.
 * @param {any} answer of `GET attention`
 * @returns {Finding[]}
 */
export function findingsIn(answer) {
  const items = Array.isArray(answer?.items) ? answer.items.slice(0, FINDINGS_MAX) : [];
  const found = items.filter((/** @type {any} */ item) => typeof item?.kind === "string").map(read);
  return [...found.filter(isDanger), ...found.filter((/** @type {Finding} */ each) => !isDanger(each))];
}

/**
 * @param {any} item
 * @returns {Finding}
 */
function read(item) {
  return {
    kind: item.kind,
    level: item.level === "danger" ? "danger" : "warning",
    count: Number.isFinite(item.count) ? item.count : 1,
    ...(typeof item.message === "string" ? { message: item.message } : {}),
    ...(typeof item.message_ja === "string" ? { message_ja: item.message_ja } : {}),
    facts: item.facts instanceof Object ? item.facts : {},
  };
}

/** @param {Finding} finding */
function isDanger(finding) {
  return finding.level === "danger";
}

/**
 * The same for the same thing at each look: its kind, and the tag, flow or worker it is about.
 * @param {Finding} finding
 */
export function keyOf(finding) {
  const { tag, flow, worker_id: worker } = finding.facts;
  return JSON.stringify([finding.kind, tag ?? flow ?? worker ?? null]);
}

/**
 * Where one can do something about it; null where this page has no such place.
 * @param {Finding} finding
 * @returns {string | null}
 */
export function leadsTo(finding) {
  const { facts } = finding;
  switch (finding.kind) {
    case "tag_without_worker":
    case "growing_queue":
      return href("runs", [], { tag: word(facts.tag), status: "PENDING" });
    case "packs_without_worker":
      return href("runs", [], { kind: "pack", status: "PENDING" });
    case "failing_flow":
      return href("runs", [], { flow: word(facts.flow), status: "FAILED" });
    case "disputed_runs": {
      const run = onlyOne(facts.run_ids);
      return run !== null && finding.count === 1 ? href("runs", [run]) : href("runs", [], { kind: "pack", status: "RUNNING" });
    }
    case "money_differs":
      return href("budgets");
    case "dead_letters":
      return href("letters");
    case "workers_lost":
      return href("workers", [], { worker: word(facts.worker_id) });
    case "schedule_overdue": {
      const name = onlyOne(facts.schedules);
      return name !== null && finding.count === 1 ? href("schedules", [name]) : href("schedules");
    }
    case "wheel_failures":
      return href("workers", [], { worker: onlyOne(facts.worker_ids) });
    case "stale_runs": {
      const run = onlyOne(facts.run_ids);
      return run !== null && finding.count === 1 ? href("runs", [run]) : href("runs", [], { status: "RUNNING" });
    }
    default:
      return null;
  }
}

/** @param {unknown} value */
function word(value) {
  return typeof value === "string" ? value : null;
}

/** @param {unknown} value */
function onlyOne(value) {
  return Array.isArray(value) && value.length === 1 ? word(value[0]) : null;
}

/**
 * @param {Finding[]} findings
 * @returns {number} of dead letters
 */
export function lettersIn(findings) {
  return findings.find((each) => each.kind === "dead_letters")?.count ?? 0;
}

/**
 * Which are to be shown, and what stays put aside. A finding comes back when it grew, became worse, or was away for a
 * while and has come anew.
 * @param {Finding[]} findings
 * @param {Aside} aside
 * @param {number} now
 * @returns {{ shown: Finding[], hidden: Finding[], aside: Aside }}
 */
export function sorted(findings, aside, now) {
  /** @type {Finding[]} */
  const shown = [];
  /** @type {Finding[]} */
  const hidden = [];
  /** @type {Aside} */
  const kept = {};
  for (const [key, put] of Object.entries(aside)) {
    if (now - put.seenAt <= AWAY_SECONDS) kept[key] = put;
  }
  for (const finding of findings) {
    const key = keyOf(finding);
    const put = kept[key];
    if (put !== undefined && finding.count <= put.count && (!isDanger(finding) || put.level === "danger")) {
      kept[key] = { ...put, seenAt: now };
      hidden.push(finding);
    } else {
      delete kept[key];
      shown.push(finding);
    }
  }
  return { shown, hidden, aside: kept };
}

/**
 * @param {Finding} finding
 * @param {Aside} aside
 * @param {number} now
 * @returns {Aside}
 */
export function putAside(finding, aside, now) {
  const entries = Object.entries(aside).slice(1 - ASIDE_MAX);
  return { ...Object.fromEntries(entries), [keyOf(finding)]: { count: finding.count, level: finding.level, seenAt: now } };
}
