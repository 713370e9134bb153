// Which keys do what.

import { h } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { button } from "../lib/parts.js";
import { panels } from "../panels.js";

export function showHelp() {
  /** @type {HTMLDialogElement} */
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "help-title" },
    h("h2", { id: "help-title" }, t("help")),
    h("dl", { class: "keys" },
      ...panels.map((panel) => line(["g", panel.key], t(panel.title))),
      line(["/"], t("help.search")),
      line(["j", "k"], t("help.move")),
      line(["Enter"], t("help.open")),
      line(["x"], t("help.select")),
      line(["Esc"], t("help.back")),
      line(["?"], t("help"))),
    h("div", { class: "dialog-actions" }, button(t("close"), () => dialog.close(), { kind: "primary" })));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * @param {string[]} keys
 * @param {string} text
 */
function line(keys, text) {
  return h("div", null, h("dt", null, keys.map((key) => h("kbd", null, key))), h("dd", null, text));
}
