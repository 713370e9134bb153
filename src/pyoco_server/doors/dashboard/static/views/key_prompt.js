// Asks for the API key, tries it, and lets everybody go on.

import { Refused, Unreachable, get } from "../lib/api.js";
import { lockedFor, unlock } from "../lib/connection.js";
import { h, write } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { forgetKey, useKey } from "../lib/session.js";
import { settings } from "../lib/settings.js";

export class KeyPrompt {
  constructor() {
    /** @type {HTMLDialogElement | null} */
    this.dialog = null;
  }

  /** @param {boolean} wanted */
  show(wanted) {
    if (!wanted) {
      const dialog = this.dialog;
      this.dialog = null;
      dialog?.close();
      dialog?.remove();
    } else if (this.dialog === null) {
      this.dialog = this.build();
      document.body.append(this.dialog);
      this.dialog.showModal();
    }
  }

  build() {
    const needed = settings.asksForKey || lockedFor === "refused";
    const trouble = h("p", { class: "field-trouble", id: "key-trouble", role: "alert" },
      lockedFor === "refused" ? t("key.revoked") : null);
    const input = h("input", {
      type: "password", autocomplete: "off", spellcheck: "false", required: true, maxlength: "512",
      autofocus: true, "aria-describedby": "key-trouble",
    });
    const submit = h("button", { type: "submit", class: "button primary" }, t("key.use"));
    const form = h("form", {
      onsubmit: async (/** @type {Event} */ event) => {
        event.preventDefault();
        if (submit.disabled) return;
        submit.disabled = true;
        write(trouble, ""); // the same trouble is read aloud again
        try {
          write(trouble, await this.tryKey(input.value.trim()));
        } finally {
          submit.disabled = false;
          input.select();
        }
      },
    }, h("label", { class: "field" }, h("span", null, t("key.label")), input), trouble,
    h("p", { class: "dim" }, t("key.note")), h("div", { class: "dialog-actions" },
      needed ? null : h("button", { type: "button", class: "button", onclick: () => unlock() }, t("key.without")), submit));
    const dialog = h("dialog", { class: "dialog key-prompt", "aria-labelledby": "key-title", closedby: needed ? "none" : "closerequest" },
      h("h2", { id: "key-title" }, t("key.title")), h("p", null, t(needed ? "key.ask" : "key.ask.open")), form);
    // There is nothing behind it to go back to, unless the server needs no key. A second Escape closes it all the same in some browsers.
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      if (!needed) unlock();
    });
    dialog.addEventListener("close", () => {
      if (this.dialog === dialog) dialog.showModal();
    });
    return dialog;
  }

  /**
   * @param {string} key
   * @returns {Promise<string>} what is wrong with it, or nothing
   */
  async tryKey(key) {
    if (!/^[\x21-\x7e]+$/.test(key)) return t("key.illegal"); // no header can carry it
    useKey(key);
    try {
      if (settings.asksForKey) await get("runs", { limit: 1, envelope: true });
      // A server that needs no key ignores a bad one: it shows no budget then.
      else if ((await get("budgets", { limit: 1 }))?.budgets?.length === 0) return this.refused(t("key.refused"));
    } catch (error) {
      if (error instanceof Refused && error.status === 429) return this.refused(t("key.busy"));
      if (error instanceof Refused && [401, 403].includes(error.status)) return this.refused(t("key.refused"));
      if (error instanceof Unreachable) return this.refused(t("key.unreachable"));
      // A gateway in trouble has looked at the key before it looked at NATS, or cannot look now and will say so later.
      if (!(error instanceof Refused)) throw error;
    }
    unlock();
    return "";
  }

  /** @param {string} why */
  refused(why) {
    forgetKey();
    return why;
  }
}
