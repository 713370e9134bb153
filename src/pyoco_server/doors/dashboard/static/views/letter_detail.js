// All about one dead letter, and what can be done with it.

import { send } from "../lib/api.js";
import { act, confirm, mayAct } from "../lib/act.js";
import { h } from "../lib/dom.js";
import { texts, whole } from "../lib/fleet.js";
import { count } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { actButton, badge, commandBox, facts, json, since } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { currentKey } from "../lib/session.js";
import { toast } from "../lib/toast.js";
import { whyWords } from "./letters_bulk.js";

/** @typedef {import("../lib/wire.js").LetterDetail} LetterDetail */
/** @typedef {import("../lib/dom.js").Leaf} Leaf */
/** @typedef {{ gone: () => void, signal: AbortSignal }} Tell  gone: the letter is no longer there */

const ERROR_CHARACTERS_MAX = 20_000;

/**
 * @param {LetterDetail} detail
 * @param {any} run
 * @returns {Leaf[]}
 */
export function detailParts(detail, run) {
  const error = String(detail.error ?? "");
  const params = run?.params;
  const reason = String(detail.reason);
  return [
    h("p", { class: "small" }, h("strong", null, wordFor("letters.reason", reason)), " ", h("code", { class: "dim" }, reason), " ",
      whyWords(reason, detail.flow_name)),
    error === "" ? h("p", { class: "dim" }, t("letters.no_error")) : h("pre", { class: "letter-full", tabindex: "0" }, error.slice(0, ERROR_CHARACTERS_MAX)),
    facts([
      [t("letters.run"), detail.run_id ? h("span", { class: "name-line" },
        h("a", { class: "mono", href: href("runs", [detail.run_id]) }, detail.run_id),
        detail.run_status ? badge(detail.run_status) : h("span", { class: "dim small" }, t("letters.run_gone"))) : null],
      [t("letters.when"), since(detail.timestamp)],
      ...programFacts(detail),
      [t("letters.attempts"), detail.num_delivered === undefined ? null : count(whole(detail.num_delivered))],
      [t("letters.worker"), detail.worker_id ? h("a", { href: href("workers", [], { worker: detail.worker_id }) }, detail.worker_id) : null],
      [t("letters.tag"), detail.tag],
      [t("letters.labels"), texts(detail.tags).filter((tag) => tag !== detail.tag).join(", ")],
      [t("letters.subject"), detail.subject ? h("code", null, detail.subject) : null],
      [t("letters.key"), detail.api_key_id ? h("code", null, detail.api_key_id) : null],
      [t("letters.id"), h("span", { class: "mono" }, String(detail.id))],
    ]),
    params === undefined || params === null || Object.keys(params).length === 0 ? null
      : h("div", { class: "stack" }, h("h3", null, t("letters.params")), json(params)),
    detail.kind !== "exec" ? null : h("details", null, h("summary", { class: "small" }, t("letters.record")), json(detail)),
  ];
}

/**
 * What only a program's letter has.
 * @param {LetterDetail} detail
 * @returns {[string, import("../lib/dom.js").Child][]}
 */
function programFacts(detail) {
  if (detail.kind !== "exec") return [];
  const code = String(detail.error_code ?? "");
  const only = (/** @type {Record<string, string | undefined>} */ filter) => href("letters", [], filter);
  return [
    [t("letters.exec"), detail.exec_name ? h("a", { href: only({ exec: detail.exec_name }) }, detail.exec_name) : null],
    [t("letters.client_id"), detail.client_id ? h("a", { href: only({ client_id: detail.client_id }) }, detail.client_id) : null],
    [t("letters.group"), detail.group ? h("a", { href: only({ group: detail.group }) }, detail.group) : null],
    [t("program.exit_code"), detail.exit_code === undefined ? null : String(detail.exit_code)],
    [t("program.error_code"), code === "" ? null : [wordFor("program.error", code), " ", h("code", { class: "dim" }, code)]],
    [t("program.attempts"), detail.attempt === undefined ? null : count(whole(detail.attempt))],
    [t("program.lost"), detail.lost ? count(whole(detail.lost)) : null],
    [t("program.job"), detail.job_id ? h("span", { class: "mono" }, detail.job_id) : null],
  ];
}

/**
 * @param {LetterDetail} detail
 * @param {Tell} tell
 */
export function actionsOf(detail, tell) {
  const id = String(detail.id);
  if (!mayAct) return null;
  const isProgram = detail.kind === "exec";
  const remove = async () => {
    const sure = await confirm({
      title: t("letters.delete_ask"), yes: t("letters.delete"), danger: true,
      body: [h("p", null, t("letters.delete_note")), commandBox(`pyoco-client dlq delete ${id} --yes`)],
    });
    if (sure === null) return;
    const done = await act(() => send("DELETE", `dlq/${encodeURIComponent(id)}`), () => t("letters.deleted"));
    if (done !== undefined) tell.gone();
  };
  const again = isProgram
    ? actButton(t("letters.requeue"), () => requeue(id, tell.signal), { icon: "repeat", kind: "primary", title: t("letters.requeue_note") })
    : actButton(t("letters.redrive"), () => redrive(id, tell), { icon: "repeat", kind: "primary", title: t("letters.redrive_note") });
  return h("div", { class: "row-actions" },
    detail.redrivable === false ? h("span", { class: "mark" }, t("letters.not_redrivable")) : again,
    actButton(t("letters.delete"), remove, { icon: "trash", kind: "danger" }));
}

/**
 * Its run again, as a new one, and away with the letter.
 * @param {string} id
 * @param {Tell} tell
 */
async function redrive(id, tell) {
  const key = currentKey();
  const done = await act(() => send("POST", `dlq/${encodeURIComponent(id)}/redrive`));
  if (done === undefined || key !== currentKey()) return;
  const isHere = !tell.signal.aborted;
  tell.gone();
  arrive(done, isHere);
}

/**
 * The job of a program again, as a new one. The letter stays; asked for twice, it is the same new job.
 * @param {string} id
 * @param {AbortSignal} signal
 */
export async function requeue(id, signal) {
  const key = currentKey();
  const done = await act(() => send("POST", `dlq/${encodeURIComponent(id)}/requeue`));
  if (done !== undefined && key === currentKey()) arrive(done, !signal.aborted);
}

/**
 * @param {any} done
 * @param {boolean} isHere whoever went elsewhere meanwhile stays there
 */
function arrive(done, isHere) {
  const to = typeof done?.run_id === "string" ? href("runs", [done.run_id]) : undefined;
  toast(isHere ? t("letters.redriven") : t("letters.redriven_away"), "plain", isHere ? undefined : to);
  if (isHere && to !== undefined) location.hash = to;
}
