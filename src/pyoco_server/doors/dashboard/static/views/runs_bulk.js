// Many runs at once: cancel or run again those that are selected, or cancel all that the list's filter shows.

import { Refused, get, send } from "../lib/api.js";
import { confirm } from "../lib/act.js";
import { now } from "../lib/clock.js";
import { h, put, write } from "../lib/dom.js";
import { count, timeOfDay } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { icon } from "../lib/icons.js";
import { button, facts, iconButton } from "../lib/parts.js";
import { isTrouble } from "../lib/poll.js";
import { OPEN_STATUSES, cancelBody, lastingPart } from "../lib/run_filter.js";
import { hasEnded } from "../lib/run_list.js";
import { sendAgain } from "../lib/rerun.js";
import { toast } from "../lib/toast.js";

/** @typedef {import("../lib/wire.js").RunsCancelled} RunsCancelled */
/** @typedef {import("../lib/run_list.js").RunList} RunList */
/** @typedef {import("../lib/selection.js").Selection} Selection */
/**
 * @typedef {object} Owner
 * @property {RunList} list
 * @property {Selection} selection
 * @property {() => void} cleared nothing is to be selected
 * @property {() => void} changed the selection has
 * @property {() => void} done something was
 * @property {() => import("../lib/run_filter.js").RunFilter} settle the filter of the address, which is then in force
 */

const IDS_MAX = 1000;
const RERUNS_AT_ONCE = 4;
const REASONS_MAX = 5;
const COUNTED_MAX = 2000;

export class RunBulk {
  /** @param {() => Owner} owner whose list and selection may change */
  constructor(owner) {
    this.owner = owner;
    /** @type {AbortController | null} of the work that is under way */
    this.working = null;
    this.chosen = h("strong", { role: "status" });
    this.cancelButton = button(t("runs.cancel"), () => this.cancelSelected(), { icon: "stop", kind: "danger" });
    this.rerunButton = button(t("runs.rerun"), () => this.rerunSelected(), { icon: "repeat" });
    this.actions = h("div", { class: "runs-bulk-actions" }, this.cancelButton, this.rerunButton,
      button(t("runs.unselect"), () => this.owner().cleared(), { kind: "quiet" }));
    this.selectionLine = h("div", { class: "runs-bulk-line" }, this.chosen, this.actions);
    this.progress = h("progress", { "aria-label": t("runs.progress") });
    this.told = h("span", { role: "status" });
    this.stopButton = button(t("runs.stop"), () => this.stop(), { icon: "stop" });
    this.closeButton = iconButton("close", t("close"), () => this.dismiss());
    this.reasons = h("ul", { class: "runs-bulk-reasons" });
    this.workLine = h("div", { class: "runs-bulk-work", hidden: true },
      h("div", { class: "runs-bulk-line" }, this.told, this.progress, this.stopButton, this.closeButton), this.reasons);
    this.element = h("div", { class: "runs-bulk", hidden: true, role: "region", "aria-label": t("runs.bulk") },
      this.workLine, this.selectionLine);
  }

  draw() {
    const { list, selection } = this.owner();
    const { size } = selection.ids;
    this.selectionLine.hidden = size === 0;
    this.element.hidden = size === 0 && this.workLine.hidden;
    if (size > 0) write(this.chosen, t("runs.selected", { n: count(size) }));
    const chosen = size === 0 ? [] : withoutPacks(list, selection.ids);
    this.cancelButton.hidden = !chosen.some((id) => canBeCancelled(list.byId.get(id)?.status));
    this.rerunButton.hidden = chosen.length === 0;
    for (const each of this.actions.querySelectorAll("button")) {
      each.disabled = this.working !== null && each !== this.actions.lastElementChild;
    }
  }

  close() {
    if (this.working !== null) toast(t("runs.stopped_leaving"), "warning");
    this.working?.abort();
  }

  stop() {
    this.working?.abort();
  }

  dismiss() {
    this.workLine.hidden = true;
    this.draw();
  }

  async cancelSelected() {
    this.owner().settle();
    const { list, selection } = this.owner();
    if (selection.ids.size === 0) return;
    const chosen = withoutPacks(list, selection.ids);
    if (chosen.length === 0) return toast(t("runs.packs_only"), "warning");
    const ids = chosen.filter((id) => !hasEnded(list.byId.get(id) ?? { status: "" }));
    const ended = chosen.length - ids.length;
    if (ids.length === 0) return toast(t("runs.cancel.none"), "warning");
    const said = await confirm({
      title: t("runs.cancel.title", { n: count(ids.length) }), danger: true, yes: t("runs.cancel.yes"), ask: t("runs.reason"),
      body: h("p", null, t("runs.cancel.note"), ended > 0 ? ` ${t("runs.cancel.ended", { n: count(ended) })}` : ""),
    });
    if (said === null) return;
    const reason = said.text || undefined;
    const chunks = Array.from({ length: Math.ceil(ids.length / IDS_MAX) }, (_, at) => ids.slice(at * IDS_MAX, (at + 1) * IDS_MAX));
    await this.work(ids.length, (signal, step) => cancelEach(chunks.map((run_ids) => ({ run_ids, reason })), signal, step));
  }

  /** Runs that come in while we ask are not meant, so it comes to an end. */
  async cancelMatching() {
    const before = now();
    const filter = this.owner().settle();
    const body = cancelBody(filter, before);
    if (body === null) return;
    const every = Object.keys(lastingPart(filter)).length === 0;
    const counting = new AbortController();
    const said = await confirm({
      title: t(every ? "runs.cancel_all.every.title" : "runs.cancel_all.title"), danger: true, ask: t("runs.reason"),
      yes: t(every ? "runs.cancel_all.every.yes" : "runs.cancel.yes"),
      body: [every ? h("p", { class: "runs-every" }, icon("danger"), h("span", null, t("runs.cancel_all.every"))) : null,
        matchingFacts(filter, before), matchingCount(filter, counting.signal), h("p", null, t("runs.cancel.note"))],
    });
    counting.abort();
    if (said === null) return;
    await this.work(0, (signal, step) => cancelEach([{ ...body, reason: said.text || undefined }], signal, step));
  }

  /** What was not submitted stays selected, to be tried again. */
  async rerunSelected() {
    this.owner().settle();
    const { list, selection } = this.owner();
    if (selection.ids.size === 0) return;
    const ids = withoutPacks(list, selection.ids);
    if (ids.length === 0) return toast(t("runs.packs_only"), "warning");
    const said = await confirm({
      title: t("runs.rerun.title", { n: count(ids.length) }), yes: t("runs.rerun.yes"), body: h("p", null, t("runs.rerun.note")),
    });
    if (said === null) return;
    await this.work(ids.length, (signal, step) => rerunEach(ids, signal, step, (id) => this.owner().selection.ids.delete(id)));
    this.owner().changed();
  }

  /**
   * Shows how far it is, lets it be stopped, and says how it went.
   * @param {number} total 0: nobody knows
   * @param {(signal: AbortSignal, step: (done: number) => void) => Promise<Result>} work
   */
  async work(total, work) {
    if (this.working !== null) return;
    const working = (this.working = new AbortController());
    const step = (/** @type {number} */ done) => {
      if (total > 0) this.progress.value = done;
      write(this.told, t("runs.working", { n: count(done) }));
    };
    this.progress.removeAttribute("value");
    if (total > 0) this.progress.max = total;
    this.show(true);
    put(this.reasons);
    step(0);
    const result = await work(working.signal, step);
    this.working = null;
    write(this.told, [working.signal.aborted ? t("runs.stopped") : null, ...result.told].filter(Boolean).join(" "));
    put(this.reasons, ...reasonLines(result.reasons));
    this.show(false);
    this.owner().done();
  }

  /** @param {boolean} busy */
  show(busy) {
    this.workLine.hidden = false;
    this.progress.hidden = !busy;
    this.stopButton.hidden = !busy;
    this.closeButton.hidden = busy;
    this.draw();
  }
}

/**
 * Priced runs can neither be stopped nor run again.
 * @param {RunList} list
 * @param {Set<string>} ids
 */
function withoutPacks(list, ids) {
  return [...ids].filter((id) => list.byId.get(id)?.kind !== "pack");
}

/** @param {string | undefined} status */
function canBeCancelled(status) {
  return status !== undefined && OPEN_STATUSES.includes(status);
}

/** @typedef {{ told: string[], reasons: Map<string, number> }} Result */

/**
 * Each until the gateway says that there is no more.
 * @param {object[]} bodies
 * @param {AbortSignal} signal
 * @param {(done: number) => void} step
 * @returns {Promise<Result>}
 */
async function cancelEach(bodies, signal, step) {
  const sum = { matched: 0, asked: 0, already_cancelling: 0, already_ended: 0, not_found: 0, failed: 0 };
  /** @type {Map<string, number>} */
  const reasons = new Map();
  try {
    for (const body of bodies) {
      for (let more = true; more && !signal.aborted;) {
        /** @type {RunsCancelled} */
        const answer = await send("POST", "runs/cancel", body);
        for (const name of /** @type {(keyof typeof sum)[]} */ (Object.keys(sum))) sum[name] += answer[name];
        more = answer.more && answer.asked > 0; // nothing was done: asking again would do nothing, either
        step(sum.matched + sum.not_found);
      }
    }
  } catch (error) {
    reasons.set(why(error), 1);
  }
  const told = [t("runs.cancelled.asked", { n: count(sum.asked) })];
  for (const name of /** @type {const} */ (["already_cancelling", "already_ended", "not_found", "failed"])) {
    if (sum[name] > 0) told.push(t(`runs.cancelled.${name}`, { n: count(sum[name]) }));
  }
  return { told, reasons };
}

/**
 * A few at a time. One that is refused does not stop the others; when the gateway is away, all stop.
 * @param {string[]} ids
 * @param {AbortSignal} signal
 * @param {(done: number) => void} step
 * @param {(id: string) => void} onDone
 * @returns {Promise<Result>}
 */
async function rerunEach(ids, signal, step, onDone) {
  const left = ids.values();
  /** @type {Map<string, number>} */
  const reasons = new Map();
  let done = 0;
  let failed = 0;
  let away = false;
  const one = async () => {
    for (const id of left) {
      if (signal.aborted || away) return;
      try {
        await sendAgain(id, "{}");
        done += 1;
        onDone(id);
      } catch (error) {
        away ||= !(error instanceof Refused) || error.status >= 500;
        failed += 1;
        reasons.set(why(error), (reasons.get(why(error)) ?? 0) + 1);
      }
      step(done + failed);
    }
  };
  await Promise.all(Array.from({ length: RERUNS_AT_ONCE }, one));
  const told = [t("runs.reran", { n: count(done) })];
  if (failed > 0) told.push(t("runs.reran.failed", { n: count(failed) }));
  if (done + failed < ids.length) told.push(t("runs.reran.left", { n: count(ids.length - done - failed) }));
  return { told, reasons };
}

/**
 * @param {unknown} error
 * @returns {string} for people; a defect is thrown on
 */
function why(error) {
  if (!isTrouble(error)) throw error;
  return error instanceof Refused ? error.words : t("act.unreachable");
}

/** @param {Map<string, number>} reasons */
function reasonLines(reasons) {
  return [...reasons].slice(0, REASONS_MAX).map(([reason, times]) => h("li", { title: reason }, `${count(times)} × ${reason}`));
}

/**
 * @param {import("../lib/run_filter.js").RunFilter} filter
 * @param {number} before
 */
function matchingFacts(filter, before) {
  const { status, ...rest } = filter;
  /** @type {[string, string][]} */
  const others = Object.entries(rest).map(([name, value]) => [wordFor("runs.filter", name), value]);
  const statuses = (status ? [status] : OPEN_STATUSES).map((each) => wordFor("status", each)).join(", ");
  return facts([[t("runs.filter.status"), statuses], ...others,
    [t("runs.cancel_all.before"), timeOfDay(before)]]);
}

/**
 * How many that is, found out while the question is read.
 * @param {import("../lib/run_filter.js").RunFilter} filter
 * @param {AbortSignal} signal it was answered
 */
function matchingCount(filter, signal) {
  const told = h("p", { class: "runs-matching", "aria-live": "polite" }, t("runs.cancel_all.counting"));
  countMatching(filter, signal).then(({ found, more }) => {
    write(told, t(more ? "runs.cancel_all.more" : "runs.cancel_all.count", { n: count(found) }));
  }).catch((error) => {
    if (!signal.aborted) write(told, why(error));
  });
  return told;
}

/**
 * Page by page, and no further than it takes to say that it is a lot: there is no cheaper way to know.
 * @param {import("../lib/run_filter.js").RunFilter} filter
 * @param {AbortSignal} signal
 */
async function countMatching(filter, signal) {
  let found = 0;
  for (const status of filter.status ? [filter.status] : OPEN_STATUSES) {
    for (let cursor = null, first = true; first || cursor !== null; first = false) {
      if (found >= COUNTED_MAX) return { found, more: true };
      const page = await get("runs", { ...filter, status, envelope: true, limit: 200, cursor }, signal);
      found += page.items.filter((/** @type {{ kind?: string }} */ run) => run.kind !== "pack").length;
      cursor = page.next_cursor;
    }
  }
  return { found, more: false };
}
