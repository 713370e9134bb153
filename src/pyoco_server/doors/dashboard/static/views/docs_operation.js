// One request of the API: what it takes, what it answers, and a form that sends it.

import { Unreachable, sendAsIs } from "../lib/api.js";
import { h, put } from "../lib/dom.js";
import { t } from "../lib/i18n.js";
import { longText } from "../lib/parts.js";
import { example, nameOf, shape } from "../lib/schema.js";

/** @typedef {import("../lib/schema.js").Schema} Schema */
/** @typedef {import("../lib/schema.js").Schemas} Schemas */
/** @typedef {Record<string, { schema?: Schema }>} Content  by media type */
/** @typedef {{ name: string, in: string, required?: boolean, description?: string, schema?: Schema }} Parameter */
/**
 * @typedef {object} Operation
 * @property {string} operationId
 * @property {string} [summary]
 * @property {string} [description]
 * @property {string[]} [tags]
 * @property {Parameter[]} [parameters]
 * @property {{ required?: boolean, description?: string, content: Content }} [requestBody]
 * @property {Record<string, { description?: string, content?: Content }>} responses
 */
/** @typedef {() => BodyInit | null} ReadBody */

const SAFE = new Set(["GET", "HEAD"]);
/** A stream of events never ends by itself. So much of an answer is shown. */
const SHOWN_BYTES_MAX = 200_000;
let fields = 0;

/**
 * @param {string} method
 * @param {string} path
 * @param {Operation} operation
 * @param {Schemas} schemas
 */
export function operationBody(method, path, operation, schemas) {
  const inputs = (operation.parameters ?? []).map((each) => ({ each, input: inputOf(each) }));
  const body = operation.requestBody === undefined ? null : bodyOf(operation.requestBody.content, schemas);
  const answer = h("div", { class: "docs-answer", "aria-live": "polite" });
  /** @type {AbortController | null} */
  let running = null;
  const sendIt = h("button", { type: "submit", class: "button primary" }, t("docs.send"));
  const stop = h("button", { type: "button", class: "button", hidden: true, onclick: () => running?.abort() }, t("docs.stop"));
  const form = h("form", { class: "docs-form" },
    inputs.length === 0 ? null : h("h3", null, t("docs.parameters")), inputs.map(({ each, input }) => fieldOf(each, input)),
    body === null ? null : [h("h3", null, t("docs.body")), prose(operation.requestBody?.description), body.element],
    SAFE.has(method) ? null : h("p", { class: "dim small" }, t("docs.changes")),
    h("div", { class: "chips" }, sendIt, stop), answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running !== null) return;
    running = new AbortController();
    stop.hidden = false;
    try {
      const given = (/** @type {string} */ where) => inputs.filter(({ each, input }) => each.in === where && input.value !== "");
      let target = path.slice(1);
      for (const { each, input } of given("path")) target = target.replace(`{${each.name}}`, encodeURIComponent(input.value));
      const query = new URLSearchParams(given("query").map(({ each, input }) => [each.name, input.value])).toString();
      /** @type {Record<string, string>} */
      const headers = Object.fromEntries(given("header").map(({ each, input }) => [each.name, input.value]));
      const sent = body?.read() ?? null;
      if (typeof sent === "string") headers["Content-Type"] = "application/json";
      put(answer);
      await show(answer, await sendAsIs(method, query === "" ? target : `${target}?${query}`, headers, sent, running.signal));
    } catch (error) {
      if (!running.signal.aborted) put(answer, h("p", { role: "alert" }, error instanceof Unreachable ? t("docs.unreachable") : String(error)));
    } finally {
      running = null;
      stop.hidden = true;
    }
  });
  return h("div", { class: "docs-body" }, prose(operation.description), form, answersOf(operation.responses));
}

/**
 * Status, headers and as much of the body as can be shown, while it arrives.
 * @param {HTMLElement} place
 * @param {Response} answer
 */
async function show(place, answer) {
  const type = answer.headers.get("content-type") ?? "";
  const head = [...answer.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
  const content = h("div");
  put(place, h("p", null, h("strong", null, `${answer.status} ${answer.statusText}`)), longText(head), content);
  if (!/json|text|xml|javascript/.test(type)) {
    const size = (await answer.arrayBuffer()).byteLength;
    if (size > 0) put(content, h("p", null, t("docs.binary", { n: size, type })));
    return;
  }
  const reader = answer.body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  while (reader !== undefined && text.length < SHOWN_BYTES_MAX) {
    const piece = await reader.read();
    if (piece.done) break;
    text += decoder.decode(piece.value, { stream: true });
    put(content, longText(text));
  }
  await reader?.cancel();
  if (type.includes("json")) put(content, longText(indented(text)));
}

/** @param {string} text */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {Parameter} parameter */
function inputOf(parameter) {
  const shown = parameter.schema?.default;
  return h("input", {
    type: "text", id: `docs-${++fields}`, required: parameter.required === true,
    placeholder: shown === undefined ? shape(parameter.schema) : String(shown),
  });
}

/**
 * @param {Parameter} parameter
 * @param {HTMLElement} input
 */
function fieldOf(parameter, input) {
  return h("div", { class: "field" },
    h("label", { for: input.id }, h("code", null, parameter.name), ` · ${parameter.in}`,
      parameter.required === true ? ` · ${t("docs.required")}` : null),
    input, prose(parameter.description));
}

/**
 * Fields for the first kind of body: a form, a file, or JSON with its schema beside it.
 * @param {Content} content
 * @param {Schemas} schemas
 * @returns {{ element: HTMLElement, read: ReadBody }}
 */
function bodyOf(content, schemas) {
  const [type, { schema }] = Object.entries(content)[0];
  const known = schema?.$ref === undefined ? schema : schemas[nameOf(schema.$ref)];
  if (type === "multipart/form-data") return partsOf(known);
  if (type === "application/octet-stream") {
    const file = h("input", { type: "file", "aria-label": t("docs.body") });
    return { element: file, read: () => file.files?.[0] ?? null };
  }
  const area = h("textarea", { rows: 8, "aria-label": t("docs.body"), spellcheck: "false" });
  area.value = JSON.stringify(example(schema, schemas), null, 2);
  return {
    element: h("div", { class: "docs-json" }, area, h("pre", { class: "docs-shape", tabindex: "0" }, shape(known))),
    read: () => area.value.trim() || null,
  };
}

/**
 * @param {Schema | undefined} schema
 * @returns {{ element: HTMLElement, read: ReadBody }}
 */
function partsOf(schema) {
  const required = new Set(schema?.required);
  const parts = Object.entries(schema?.properties ?? {}).map(([name, each]) => {
    const one = each.type === "array" ? each.items : each;
    const isFile = one?.format === "binary" || (one !== undefined && "contentMediaType" in one);
    const input = h("input", { type: isFile ? "file" : "text", id: `docs-${++fields}`, multiple: isFile && each.type === "array" });
    return { name, each, input };
  });
  return {
    element: h("div", { class: "docs-form" }, parts.map(({ name, each, input }) => fieldOf(
      { name, in: shape(each), required: required.has(name), description: each.description }, input))),
    read: () => {
      const form = new FormData();
      for (const { name, input } of parts) {
        for (const file of input.files ?? []) form.append(name, file);
        if (input.type === "text" && input.value !== "") form.append(name, input.value);
      }
      return form;
    },
  };
}

/** @param {Operation["responses"]} responses */
function answersOf(responses) {
  const lines = Object.entries(responses).map(([status, told]) => h("tr", null,
    h("td", { class: "mono" }, status), h("td", null, prose(told.description)),
    h("td", null, Object.entries(told.content ?? {}).map(([type, { schema }]) => h("div", null, h("code", null, type), " ", named(schema))))));
  return h("section", null, h("h3", null, t("docs.answers")), h("div", { class: "table-wrap" }, h("table", { class: "table" },
    h("thead", null, h("tr", null, [t("docs.status"), t("docs.meaning"), t("docs.content")].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, lines))));
}

/**
 * A schema with a name leads to it.
 * @param {Schema | undefined} schema
 */
function named(schema) {
  if (schema?.$ref !== undefined) return h("a", { href: `#schema-${nameOf(schema.$ref)}` }, nameOf(schema.$ref));
  return h("span", { class: "mono small" }, shape(schema));
}

/**
 * Text with code between backticks.
 * @param {string} [text]
 */
function prose(text = "") {
  if (text === "") return null;
  return h("div", { class: "docs-prose" }, text.split("\n\n").map((paragraph) =>
    h("p", null, paragraph.split("`").map((part, at) => (at % 2 === 1 ? h("code", null, part) : part)))));
}
