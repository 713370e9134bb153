// What every view is put together from. Look here before making a new one.

import { now, ticks } from "./clock.js";
import { h, put, write } from "./dom.js";
import { ago, ahead, dateTime, span } from "./format.js";
import { t, wordFor } from "./i18n.js";
import { icon } from "./icons.js";
import { settings } from "./settings.js";
import { toast } from "./toast.js";

/** @typedef {import("./dom.js").Child} Child */
/** @typedef {import("./icons.js").Icon} Icon */

/** @type {Record<string, Icon>} */
const STATUS_ICONS = {
  PENDING: "pending", RUNNING: "running", CANCELLING: "cancelling", COMPLETED: "completed", SUCCEEDED: "completed",
  FAILED: "failed", CANCELLED: "cancelled", NOT_RUN: "idle", STALE: "stale", UNKNOWN: "stale", IDLE: "idle", STOPPED_GRACEFUL: "stop", DISCONNECTED: "gone",
};

/**
 * A status of a run, a task or a worker: a picture, a colour and the word.
 * @param {string} status
 */
export function badge(status) {
  return h("span", { class: `badge status-${status.toLowerCase()}` }, statusIcon(status), wordFor("status", status));
}

/**
 * The picture alone, for where there is no room for the word.
 * @param {string} status
 */
export function statusIcon(status) {
  return icon(Object.hasOwn(STATUS_ICONS, status) ? /** @type {Icon} */ (STATUS_ICONS[status]) : "pending");
}

/**
 * FLOW-30: silent for too long, though it says it is running. For the eye only. A priced run shows its signs of life to
 * the ledger alone.
 * @param {{ status: string, kind?: string, heartbeat_at?: number | null }} run
 */
export function isStale(run) {
  return run.status === "RUNNING" && run.kind !== "pack" && typeof run.heartbeat_at === "number" &&
    now() - run.heartbeat_at > settings.staleSeconds;
}

/**
 * @param {string} label
 * @param {() => unknown} onclick
 * @param {{ icon?: Icon, kind?: "plain" | "primary" | "danger" | "quiet", title?: string, pressed?: boolean }} [how]
 */
export function button(label, onclick, how = {}) {
  return h("button", {
    type: "button", class: `button ${how.kind ?? "plain"}`, title: how.title, onclick,
    "aria-pressed": how.pressed === undefined ? null : String(how.pressed),
  }, how.icon ? icon(how.icon) : null, h("span", null, label));
}

/**
 * A button that shows a picture only; its name is read aloud and shown on hovering.
 * @param {Icon} name
 * @param {string} label
 * @param {(event: Event) => unknown} onclick
 */
export function iconButton(name, label, onclick) {
  return h("button", { type: "button", class: "button icon-only quiet", "aria-label": label, title: label, onclick },
    icon(name));
}

/**
 * A button that works for a while: it cannot be pressed twice, and says that it is busy.
 * @param {string} label
 * @param {() => Promise<unknown>} work what it raises is shown as a toast by `act`
 * @param {Parameters<typeof button>[2]} [how]
 */
export function actButton(label, work, how) {
  const element = button(label, async () => {
    if (element.getAttribute("aria-busy") === "true") return;
    element.setAttribute("aria-busy", "true");
    try {
      await work();
    } finally {
      element.removeAttribute("aria-busy");
    }
  }, how);
  return element;
}

/**
 * A region with a heading of its own.
 * @param {string} title
 * @param {{ class?: string, actions?: Child, level?: 2 | 3 }} how
 * @param {...Child} body
 */
export function card(title, how, ...body) {
  const heading = h(how.level === 3 ? "h3" : "h2", null, title);
  const head = h("header", { class: "card-head" }, heading, h("div", { class: "card-actions" }, how.actions));
  return h("section", { class: `card ${how.class ?? ""}`, "aria-label": title }, head, ...body);
}

/**
 * Names and values, two columns.
 * @param {[string, Child][]} pairs those whose value is null are left out
 */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

/**
 * What to say where there is nothing to show: that, and what to do.
 * @param {string} title
 * @param {...Child} more
 */
export function nothing(title, ...more) {
  return h("div", { class: "nothing" }, h("p", { class: "nothing-title" }, title), ...more);
}

/**
 * Whether a key pressed there is meant for what is being written. A box that is ticked takes no letters.
 * @param {EventTarget | null} target
 */
export function isTyping(target) {
  return target instanceof HTMLElement && (target.isContentEditable ||
    target.matches("textarea, select, input:not([type=checkbox], [type=radio], [type=button], [type=submit], [type=file])"));
}

/** A shape where something will be in a moment. */
export function skeleton(lines = 3) {
  return h("div", { class: "skeleton", "aria-hidden": "true" }, Array.from({ length: lines }, () => h("div")));
}

/**
 * An instant as an age that keeps true by itself; the instant is in its title.
 * @param {number | null | undefined} at
 */
export function since(at) {
  if (typeof at !== "number") return h("span", { class: "dim" }, "–");
  const stamp = new Date(at * 1000);
  const iso = Number.isNaN(stamp.getTime()) ? null : stamp.toISOString();
  return h("time", { datetime: iso, title: dateTime(at), "data-at": at, "data-as": "ago" }, ago(now() - at));
}

/**
 * How long until an instant; it keeps true by itself.
 * @param {number} at
 * @param {string} title
 */
export function until(at, title) {
  return h("time", { datetime: new Date(at * 1000).toISOString(), title, "data-at": at, "data-as": "until" }, ahead(at - now()));
}

/**
 * How long something has taken so far, or took.
 * @param {number | null | undefined} from
 * @param {number | null | undefined} to null: it goes on
 */
export function lasting(from, to) {
  if (typeof from !== "number") return h("span", { class: "dim" }, "–");
  if (typeof to === "number") return h("span", null, span(to - from));
  return h("time", { title: dateTime(from), "data-at": from, "data-as": "span" }, span(Math.floor(now() - from)));
}

/** Called once: keeps every age on the page true. O(ages that are shown), and lists show a screenful. */
export function keepAges() {
  ticks.follow(() => {
    const at = now();
    for (const element of document.querySelectorAll("time[data-at]")) {
      const { at: text, as } = /** @type {HTMLElement} */ (element).dataset;
      const seconds = at - Number(text);
      if (as === "until") write(element, ahead(-seconds));
      else write(element, as === "span" ? span(Math.max(0, Math.floor(seconds))) : ago(seconds));
    }
  });
}

const CLIENT = "pyoco-client";
/** Where the client looks for the gateway when it is told nothing. */
const CLIENT_DEFAULT = /^http:\/\/(127\.0\.0\.1|localhost):8000$/;

/**
 * A command for the client, as it works in any terminal: with the gateway that this page comes from. Never with a key.
 * @param {string} command
 * @param {string} [page] the page's address
 */
export function clientCommand(command, page = location.href) {
  if (!command.startsWith(`${CLIENT} `)) return command;
  const server = new URL(".", page).href.replace(/\/$/, "");
  return CLIENT_DEFAULT.test(server) ? command : `${CLIENT} --server ${shellWord(server)}${command.slice(CLIENT.length)}`;
}

/**
 * A command to copy: what the page shows, for a terminal. One of the client gets the gateway's address here.
 * @param {string} command
 */
export function commandBox(command) {
  const whole = clientCommand(command);
  return h("div", { class: "command" }, h("code", { tabindex: "0" }, whole), iconButton("copy", t("copy"), () => copy(whole)));
}

/** @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast(t("copied"), "plain", undefined, "copied");
  } catch {
    // No permission, or a page that came over plain HTTP, where the browser has no clipboard for it.
    if (copyByHand(text)) toast(t("copied"), "plain", undefined, "copied");
    else toast(t("copy_failed"), "warning");
  }
}

/**
 * As if it was selected and copied with the keys. In an open dialog, since nothing outside of it can be selected.
 * @param {string} text
 */
function copyByHand(text) {
  const before = document.activeElement;
  const field = h("textarea", { class: "unseen", readonly: true, tabindex: "-1" });
  field.value = text;
  ([...document.querySelectorAll("dialog:modal")].at(-1) ?? document.body).append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (before instanceof HTMLElement) before.focus({ preventScroll: true });
  return done;
}

/**
 * A word for a shell: quoted when it has to be.
 * @param {string} word
 */
export function shellWord(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

const JSON_CHARACTERS_MAX = 20_000;

/**
 * A value as JSON, as text; a very long one is cut, and says so.
 * @param {unknown} value
 */
export function json(value) {
  return longText(JSON.stringify(value, null, 2) ?? "null");
}

/**
 * A text as it is, every line of it; a very long one is cut, and says so.
 * @param {string} text
 */
export function longText(text) {
  const shown = text.length > JSON_CHARACTERS_MAX ? text.slice(0, JSON_CHARACTERS_MAX) : text;
  return h("div", { class: "json" }, h("pre", { tabindex: "0" }, shown),
    shown.length < text.length ? h("p", { class: "mark" }, t("cut", { n: text.length - shown.length })) : null,
    iconButton("copy", t("copy"), () => copy(text)));
}

/**
 * Keep a region's children as long as what they were made from stays the same: a selection, focus or an open `details`
 * survives a refresh.
 * @param {Element} element
 * @param {unknown} made
 * @param {() => Child[]} make
 */
export function refill(element, made, make) {
  const text = JSON.stringify(made);
  if (/** @type {any} */ (element).pyocoMade === text) return;
  /** @type {any} */ (element).pyocoMade = text;
  put(element, ...make());
}
