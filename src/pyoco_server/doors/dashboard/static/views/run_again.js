// The same run once more, as it was or with other params: shown before it is asked for.

import { Refused, Unreachable } from "../lib/api.js";
import { h, write } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { parseTyped } from "../lib/numbers.js";
import { actButton, button, facts } from "../lib/parts.js";
import { sendAgain } from "../lib/rerun.js";
import { href } from "../lib/router.js";
import { isObject, isProgram, jsonText, textOf } from "../lib/run_facts.js";
import { currentKey } from "../lib/session.js";
import { toast } from "../lib/toast.js";
import { readParams } from "./runs_submit.js";

/** @typedef {import("../lib/wire.js").Run} Run */

/**
 * What of the params differs, and nothing else: the server lays it over the old ones, which so keep the form in which
 * they were given (a 1.0 comes to a browser as 1).
 * @param {Record<string, unknown>} old
 * @param {string} text
 * @returns {{ params: Record<string, unknown> | null } | { trouble: string }} null: nothing does
 */
export function changeOf(old, text) {
  const read = readParams(text);
  if ("trouble" in read) return read;
  /** @type {Record<string, unknown>} */
  const typed = read.params === null ? {} : parseTyped(read.params);
  const lost = Object.keys(old).filter((name) => !Object.hasOwn(typed, name));
  if (lost.length > 0) return { trouble: t("run.again.lost", { names: lost.slice(0, 5).map(jsonText).join(", ") }) };
  const changed = Object.entries(typed).filter(([name, value]) =>
    !Object.hasOwn(old, name) || JSON.stringify(old[name]) !== JSON.stringify(value));
  return { params: changed.length === 0 ? null : Object.fromEntries(changed) };
}

/**
 * Opens the dialog. Escape and the first button leave everything as it is; Ctrl+Enter within the params submits.
 * @param {string} id
 * @param {Run} run
 */
export function runAgain(id, run) {
  const old = isObject(run.params) ? run.params : {};
  const fixed = isProgram(run) ? t("run.again.program") : run.params_truncated ? t("run.again.truncated")
    : run.workflow_yaml_sha256 ? t("run.again.uploaded") : "";
  const params = h("textarea", {
    rows: "8", spellcheck: "false", dir: "ltr", readonly: fixed !== "", "aria-describedby": "again-note again-trouble",
  }, run.params_truncated ? "" : jsonText(old));
  const note = h("p", { id: "again-note", class: "dim small" }, fixed || t("run.again.note"));
  const trouble = h("p", { id: "again-trouble", class: "field-trouble run-again-trouble", role: "alert" });

  const check = () => {
    const change = params.readOnly ? { params: null } : changeOf(old, params.value);
    const wrong = "trouble" in change;
    params.setAttribute("aria-invalid", String(wrong));
    write(trouble, wrong ? change.trouble : "");
    return wrong ? null : change;
  };
  const submit = async () => {
    const change = check();
    if (change === null) return params.focus();
    const key = currentKey();
    try {
      const done = await sendAgain(id, JSON.stringify(change.params === null ? {} : { params: change.params }));
      if (key === currentKey()) arrive(textOf(done?.run_id), dialog);
    } catch (error) {
      if (key !== currentKey()) return; // it is not for whoever sits here now
      const words = wordsOf(error, dialog.open);
      if (!dialog.open) return toast(words, "danger"); // whoever closed it meanwhile hears of it all the same
      write(trouble, words);
      if (error instanceof Refused && error.status === 409) params.readOnly = true; // no params would help
    }
  };
  const no = button(t("no"), () => dialog.close());
  const yes = actButton(t("run.rerun"), submit, { kind: "primary", icon: "repeat" });
  params.addEventListener("change", check);
  params.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    yes.click();
  });
  /** @type {HTMLDialogElement} */
  const dialog = h("dialog", { class: "dialog run-again", "aria-labelledby": "again-title" },
    h("h2", { id: "again-title" }, t("run.again")),
    h("div", { class: "dialog-body" },
      facts([[t("run.again.flow"), textOf(run.flow_name)], [t("run.tag"), textOf(run.tag)]]),
      h("label", { class: "field" }, h("span", null, t("run.again.params")), params), note, trouble),
    h("div", { class: "dialog-actions" }, no, yes));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  // Not the button that submits: the key that opened the dialog may still be down.
  if (params.readOnly) return no.focus();
  params.setSelectionRange(0, 0);
  params.focus();
}

/**
 * @param {unknown} error a defect of the page is thrown on
 * @param {boolean} canPress
 */
function wordsOf(error, canPress) {
  if (error instanceof Refused) return error.words;
  if (error instanceof Unreachable) return t(canPress ? "runs.submit.again" : "act.unreachable");
  throw error;
}

/**
 * @param {string} newId
 * @param {HTMLDialogElement} dialog closed: whoever went elsewhere is left there
 */
function arrive(newId, dialog) {
  if (newId === "") return dialog.close();
  const there = href("runs", [newId]);
  if (!dialog.open) return toast(t("run.rerun.there"), "plain", there);
  dialog.close();
  toast(t("run.rerun.done"));
  location.hash = there;
}
