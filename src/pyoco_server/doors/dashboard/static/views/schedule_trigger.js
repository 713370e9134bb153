// A schedule, run now: with other params, if its kind takes some.

import { Refused, send, Unreachable } from "../lib/api.js";
import { h, write } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { freshKey } from "../lib/once.js";
import { actButton, button } from "../lib/parts.js";
import { href } from "../lib/router.js";
import { currentKey } from "../lib/session.js";
import { toast } from "../lib/toast.js";
import { readParams } from "./runs_submit.js";
import { pathOf } from "./schedule_parts.js";

/** @typedef {import("../lib/schedule_wire.js").Schedule} Schedule */

/**
 * Opens the dialog. Under one key: pressed again after a lost answer, it is one run.
 * @param {Schedule} schedule
 * @param {() => void} done
 */
export function triggerSchedule(schedule, done) {
  const { kind } = schedule.what;
  const params = h("textarea", { rows: "6", spellcheck: "false", dir: "ltr", placeholder: '{"name": "you"}', "aria-describedby": "trigger-trouble" });
  const trouble = h("p", { id: "trigger-trouble", class: "field-trouble", role: "alert" });
  let [key, sent] = [freshKey(), ""];

  const check = () => {
    const read = readParams(params.value);
    params.setAttribute("aria-invalid", String("trouble" in read));
    write(trouble, "trouble" in read ? read.trouble : "");
    return "trouble" in read ? null : read;
  };
  const submit = async () => {
    const read = check();
    if (read === null) return params.focus();
    const body = read.params === null ? "{}" : `{"params":${read.params}}`;
    if (sent !== "" && sent !== body) key = freshKey(); // other params are another run
    sent = body;
    const apiKey = currentKey();
    try {
      const answer = await send("POST", `${pathOf(schedule.name)}/trigger`, body, undefined, key);
      if (apiKey !== currentKey()) return; // it is not for whoever sits here now
      dialog.close();
      toast(t("schedules.trigger.done"), "plain", href("runs", [String(answer?.run_id)]));
      done();
    } catch (error) {
      if (error instanceof Refused) write(trouble, error.words);
      else if (error instanceof Unreachable) write(trouble, t("runs.submit.again"));
      else throw error;
    }
  };
  const yes = actButton(t("schedules.trigger"), submit, { kind: "primary", icon: "running" });
  const no = button(t("no"), () => dialog.close());
  const takes = kind !== "exec"; // its arguments are a list, over which nothing can be laid
  params.addEventListener("change", check);
  params.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    yes.click();
  });
  /** @type {HTMLDialogElement} */
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "trigger-title" },
    h("h2", { id: "trigger-title" }, t("schedules.trigger.title")),
    h("div", { class: "dialog-body" }, h("p", null, h("strong", null, schedule.name)), h("p", { class: "dim small" }, t("schedules.trigger.note")),
      takes ? h("label", { class: "field" }, h("span", null, t(kind === "pack" ? "schedules.trigger.inputs" : "schedules.trigger.params")), params) : null,
      trouble),
    h("div", { class: "dialog-actions" }, no, yes));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  (takes ? params : no).focus();
}
