// The page about the API: every request of the OpenAPI document, found by words, and the schemas.

import { Refused, get } from "../lib/api.js";
import { h, put, write } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { shape } from "../lib/schema.js";
import { currentKey, forgetKey, useKey } from "../lib/session.js";
import { operationBody } from "./docs_operation.js";

/** @typedef {import("../lib/schema.js").Schemas} Schemas */
/** @typedef {import("./docs_operation.js").Operation} Operation */
/**
 * @typedef {object} Document  of OpenAPI
 * @property {{ title: string, version: string, description?: string }} info
 * @property {Record<string, Record<string, Operation>>} paths
 * @property {{ schemas?: Schemas }} [components]
 */
/** @typedef {{ method: string, path: string, operation: Operation, element: HTMLDetailsElement, words: string }} Entry */

/** @param {HTMLElement} root */
export async function showDocs(root) {
  root.className = "docs";
  /** @type {Document} */
  let told;
  try {
    told = await get("openapi.json");
  } catch (error) {
    const why = error instanceof Refused ? error.words : String(error);
    put(root, h("h1", null, t("docs.title", { version: "" })), keyField(), h("p", { role: "alert" }, t("docs.failed", { why })));
    return;
  }
  const schemas = told.components?.schemas ?? {};
  const entries = Object.entries(told.paths).flatMap(([path, item]) =>
    Object.entries(item).map(([method, operation]) => entryOf(method.toUpperCase(), path, operation, schemas)));
  const tags = [...new Set(entries.map((each) => each.operation.tags?.[0] ?? ""))];
  const sections = tags.map((tag) => h("section", { "aria-label": tag }, h("h2", null, tag),
    ...entries.filter((each) => (each.operation.tags?.[0] ?? "") === tag).map((each) => each.element)));
  const found = h("p", { class: "dim small", role: "status" });
  const search = h("input", { type: "search", "aria-label": t("docs.search"), placeholder: t("docs.search") });
  const narrow = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const each of entries) each.element.hidden = !wanted.every((word) => each.words.includes(word));
    for (const section of sections) section.hidden = section.querySelector("details:not([hidden])") === null;
    write(found, t("docs.found", { n: entries.filter((each) => !each.element.hidden).length }));
  };
  search.addEventListener("input", narrow);
  narrow();
  put(root,
    h("header", { class: "docs-head" },
      h("h1", null, t("docs.title", { version: told.info.version })),
      h("nav", { class: "chips" },
        h("a", { class: "button", href: "./" }, t("docs.dashboard")),
        h("a", { class: "button", href: "openapi.json" }, "openapi.json"))),
    h("p", { class: "dim" }, t("docs.about")), keyField(), search, found, ...sections,
    h("section", { "aria-label": t("docs.schemas") }, h("h2", null, t("docs.schemas")),
      Object.entries(schemas).map(([name, schema]) => h("details", { class: "docs-item", id: `schema-${name}` },
        h("summary", null, h("code", null, name), h("span", { class: "dim small" }, schema.description)),
        h("pre", { class: "docs-shape", tabindex: "0" }, shape(schema))))));
  openNamed();
  addEventListener("hashchange", openNamed);
}

/** The one that the address names is opened: a link can be passed on. */
function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!(named instanceof HTMLDetailsElement)) return;
  named.open = true;
  named.scrollIntoView();
}

/**
 * @param {string} method
 * @param {string} path
 * @param {Operation} operation
 * @param {Schemas} schemas
 * @returns {Entry}
 */
function entryOf(method, path, operation, schemas) {
  const element = h("details", { class: "docs-item", id: operation.operationId },
    h("summary", null, h("code", { class: `docs-method docs-${method.toLowerCase()}` }, method), h("code", null, path),
      h("span", { class: "dim small" }, operation.summary)));
  element.addEventListener("toggle", () => {
    if (element.open && element.children.length === 1) element.append(operationBody(method, path, operation, schemas));
  });
  const words = [method, path, operation.summary, operation.description].join(" ").toLowerCase();
  return { method, path, operation, element, words };
}

function keyField() {
  const input = h("input", { type: "password", autocomplete: "off", value: currentKey() ?? "" });
  input.addEventListener("change", () => {
    const given = input.value.trim();
    if (given === "") forgetKey();
    else useKey(given);
  });
  return h("label", { class: "field" }, t("docs.key"), input);
}
