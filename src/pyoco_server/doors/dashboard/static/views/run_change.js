// What last happened to a run and who did it; who asked to cancel it, and how its worker is. In words.

import { t, wordFor } from "../lib/i18n.js";
import { since } from "../lib/parts.js";
import { instant, textOf } from "../lib/run_facts.js";

/** @typedef {import("../lib/wire.js").Run} Run */
/** @typedef {import("../lib/dom.js").Child} Child */
/** @typedef {import("../lib/wire.js").LastChange["by"]} By */

/**
 * @param {Run} run
 * @returns {Child} null: the gateway is too old to tell
 */
export function changeOf(run) {
  const change = run.last_change;
  if (!change) return null;
  const what = wordFor("run.change", textOf(change.what));
  const who = whoDid(change.by);
  let words = who === "" ? what : t("run.change.by", { what, who });
  if (change.what === "cancel_requested") words = t("run.change.by", { what, who: askerOf(run) });
  if (change.what === "cancelled" && wasAsked(run)) {
    const parts = [t("run.cancel.asked_by", { who: askerOf(run) }), who === "" ? "" : t("run.cancel.done_by", { who })];
    words = `${what}: ${parts.filter(Boolean).join(" · ")}`;
  }
  return [words, " · ", since(instant(change.at))];
}

/**
 * When it was asked to stop, where the last change does not say it; and by whom, where it ended in another way.
 * @param {Run} run
 * @returns {Child}
 */
export function cancelAskedOf(run) {
  const what = run.last_change?.what;
  if (!wasAsked(run) || what === "cancel_requested") return null;
  const at = since(instant(run.cancel_requested_at));
  return what === "cancelled" ? at : [askerOf(run), " · ", at];
}

/** @param {Run} run */
function wasAsked(run) {
  return instant(run.cancel_requested_at) !== null;
}

/** @param {Run} run */
function askerOf(run) {
  const id = textOf(run.cancel_requested_by);
  return id === "" ? t("run.who.caller") : t("run.who.api_key", { id });
}

/** @param {By} by nobody is told apart without authentication */
function whoDid(by) {
  const id = textOf(by?.id);
  if (by?.kind === "worker") return id === "" ? t("run.who.a_worker") : t("run.who.worker", { id });
  if (by?.kind === "api_key") return t("run.who.api_key", { id });
  return by?.kind === "keeper" || by?.kind === "gateway" || by?.kind === "operator" ? t(`run.who.${by.kind}`) : "";
}
