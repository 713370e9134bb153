// How many jobs of a client may run at once: looked at, and set anew.

import { send } from "../lib/api.js";
import { act, confirm } from "../lib/act.js";
import { h } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { button, commandBox, shellWord } from "../lib/parts.js";
import { toast } from "../lib/toast.js";

const CAP_MAX = 10_000;

/**
 * @param {string} client
 * @param {string} group
 * @param {number | undefined} cap undefined: the server's default
 * @param {() => void} changed
 */
export function capButton(client, group, cap, changed) {
  const ask = async () => {
    const answer = await confirm({
      title: t("programs.cap.title", { client }), yes: t("programs.cap.yes"), ask: t("programs.cap.ask", { most: CAP_MAX }),
      body: [h("p", null, t("programs.cap.note")),
        commandBox(`pyoco-server-admin program cap set ${shellWord(client)} ${cap ?? 8} --group ${shellWord(group)}`)],
    });
    if (answer === null) return;
    const wanted = /^[0-9]{1,5}$/.test(answer.text) ? Number(answer.text) : 0;
    if (wanted < 1 || wanted > CAP_MAX) return toast(t("programs.cap.bad", { most: CAP_MAX }), "warning");
    const done = await act(() => send("PUT", `exec/clients/${encodeURIComponent(client)}`, { cap: wanted }, { group }),
      (told) => t("programs.cap.done", { client, cap: String(told?.cap ?? wanted) }));
    if (done !== undefined) changed();
  };
  const words = t("programs.cap.change", { client });
  const pressed = button(t("programs.cap.short"), ask, { kind: "quiet", title: words });
  pressed.setAttribute("aria-label", words);
  return pressed;
}
