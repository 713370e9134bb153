// Doing something: asked for once, told plainly, refused by the server when the page may not.

import { Refused, Unreachable } from "./api.js";
import { h } from "./dom.js";
import { t } from "./i18n.js";
import { button } from "./parts.js";
import { settings } from "./settings.js";
import { toast } from "./toast.js";

/** Whether the page offers actions at all. The server refuses them too. */
export const mayAct = !settings.readOnly;

/**
 * Do it, and say how it went. Returns what `work` returned, or undefined when it failed and that was told.
 * @template T
 * @param {() => Promise<T>} work
 * @param {(done: T) => string} [tell]
 * @returns {Promise<T | undefined>}
 */
export async function act(work, tell) {
  try {
    const done = await work();
    if (tell) toast(tell(done));
    return done;
  } catch (error) {
    if (error instanceof Refused) toast(error.words, "danger");
    else if (error instanceof Unreachable) toast(t("act.unreachable"), "danger");
    else throw error;
    return undefined;
  }
}

/**
 * A question with a way out: Escape and the first button mean no.
 * @param {{ title: string, body?: import("./dom.js").Child, yes: string, danger?: boolean, ask?: string }} what
 *   ask: the label of a line of text to fill in
 * @returns {Promise<{ text: string } | null>} null: no
 */
export function confirm(what) {
  return new Promise((resolve) => {
    const line = what.ask === undefined ? null : h("input", { type: "text", maxlength: "500", autocomplete: "off" });
    const label = line && h("label", { class: "field" }, h("span", null, what.ask), line);
    let answer = /** @type {{ text: string } | null} */ (null);
    const yes = () => {
      answer = { text: line?.value.trim() ?? "" };
      dialog.close();
    };
    const no = button(t("no"), () => dialog.close());
    /** @type {HTMLDialogElement} */
    const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title" },
      h("h2", { id: "dialog-title" }, what.title),
      h("div", { class: "dialog-body" }, what.body, label),
      h("div", { class: "dialog-actions" },
        no,
        button(what.yes, yes, { kind: what.danger ? "danger" : "primary" })));
    line?.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault(); // or it would also press the button that gets the focus back
      yes();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
    (line ?? no).focus();
  });
}
