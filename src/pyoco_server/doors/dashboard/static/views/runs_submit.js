// A run, submitted by hand.

import { Refused, Unreachable, send } from "../lib/api.js";
import { h, write } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { freshKey } from "../lib/once.js";
import { actButton, button } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { toast } from "../lib/toast.js";

/**
 * The params as they were typed, if they are an object: written anew by this browser, a long number would have other
 * digits, and 1.0 would be 1.
 * @param {string} text
 * @returns {{ params: string | null } | { trouble: string }}
 */
export function readParams(text) {
  if (text.trim() === "") return { params: null };
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { trouble: t("runs.submit.not_json", { why: error instanceof Error ? error.message : "" }) };
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) return { trouble: t("runs.submit.not_object") };
  return { params: text.trim() };
}

/**
 * Asks for flow, tag and params, and opens the run. Under one key: pressed again after a lost answer, it is submitted once.
 * @param {{ flow?: string }} given what the list is narrowed down to. Its tag may be a label, which no worker serves
 */
export function submitRun(given) {
  const field = (/** @type {string} */ label, /** @type {HTMLElement} */ input) =>
    h("label", { class: "field" }, h("span", null, label), input);
  const flow = h("input", { type: "text", list: "runs-flows", required: true, maxlength: "512", autocomplete: "off", value: given.flow });
  const tag = h("input", { type: "text", list: "runs-tags", maxlength: "128", autocomplete: "off", placeholder: t("runs.submit.tag.default") });
  const params = h("textarea", { rows: "6", spellcheck: "false", placeholder: '{"name": "you"}', "aria-describedby": "submit-trouble" });
  const trouble = h("p", { id: "submit-trouble", class: "field-trouble", role: "alert" });
  let key = freshKey();
  let sent = "";

  const check = () => {
    const read = readParams(params.value);
    const wrong = "trouble" in read;
    params.setAttribute("aria-invalid", String(wrong));
    write(trouble, wrong ? read.trouble : "");
    return wrong ? null : read;
  };
  const submit = async () => {
    const read = check();
    if (read === null) return params.focus();
    if (flow.value.trim() === "") {
      write(trouble, t("runs.submit.no_flow"));
      return flow.focus();
    }
    const body = JSON.stringify({ flow_name: flow.value.trim(), tag: tag.value.trim() || undefined });
    const text = read.params === null ? body : `${body.slice(0, -1)},"params":${read.params}}`;
    if (sent !== "" && sent !== text) key = freshKey(); // another submission is another run
    sent = text;
    try {
      const done = await send("POST", "runs", text, undefined, key);
      dialog.close();
      toast(t("runs.submit.done"));
      location.hash = href("runs", [String(done.run_id)]);
    } catch (error) {
      if (error instanceof Refused) write(trouble, error.words);
      else if (error instanceof Unreachable) write(trouble, t("runs.submit.again"));
      else throw error;
    }
  };
  params.addEventListener("change", check);
  const yes = actButton(t("runs.submit.yes"), submit, { kind: "primary" });
  for (const line of [flow, tag]) {
    line.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      yes.click();
    });
  }
  /** @type {HTMLDialogElement} */
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "submit-title" },
    h("h2", { id: "submit-title" }, t("runs.submit")),
    h("div", { class: "dialog-body" }, field(t("runs.filter.flow"), flow), field(t("runs.submit.tag"), tag),
      field(t("runs.submit.params"), params), trouble),
    h("div", { class: "dialog-actions" }, button(t("no"), () => dialog.close()), yes));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  (given.flow ? params : flow).focus();
}
