// Pages that were read from pictures: what is doubtful and what could not be read is seen at once.

import { h } from "../lib/dom.js";
import { plain, share } from "../lib/envelope.js";
import { count, percent } from "../lib/format.js";
import { t, wordFor } from "../lib/i18n.js";
import { isObject, textOf } from "../lib/run_facts.js";
import { grown, part, prose, table } from "./envelope_parts.js";
import { listed, tree } from "./envelope_tree.js";

/** @typedef {import("./envelope_parts.js").Offer} Offer */
/** @typedef {Record<string, unknown>} Data */

/** Pages that are open from the start. */
const OPEN_MAX = 3;

/**
 * @param {Data} data
 * @param {Offer} offer
 * @param {Data} meta
 */
export function ocrParts(data, offer, meta) {
  const notes = t("envelope.ocr.notes");
  return [
    part(t("envelope.ocr.pages"),
      h("p", { class: "dim small" }, h("mark", { class: "env-doubt" }, "(?)"), ` ${t("envelope.ocr.doubt")} · `,
        h("mark", { class: "env-unreadable" }, "[□]"), ` ${t("envelope.ocr.unreadable")}`),
      listed(data.texts, offer, (rows) => {
        const list = h("div", { class: "env-pages" });
        const tail = grown(rows, list, (row, at) => page(row, at, offer));
        return h("div", { class: "env-list" }, list, tail);
      })),
    data.notes === undefined || (Array.isArray(data.notes) && data.notes.length === 0) ? null
      : part(notes, listed(data.notes, offer, (rows) => table(notes, [
        { name: t("envelope.ocr.note"), show: (row) => wordFor("envelope.note", plain(row.type).slice(0, 100)) },
        { name: t("envelope.ocr.value"), class: "env-wide", show: (row) => prose(row.value) },
      ], rows))),
    isObject(meta.ocr) ? part(t("envelope.ocr.how"), tree(meta.ocr, offer)) : null,
  ];
}

/**
 * @param {Data} row
 * @param {number} at
 * @param {Offer} offer
 */
function page(row, at, offer) {
  const blocks = Array.isArray(row.blocks) ? row.blocks : [];
  const words = [
    row.page === undefined || row.page === null ? "" : t("envelope.ocr.page", { n: plain(row.page) }),
    t("envelope.ocr.blocks", { n: count(blocks.length) }),
  ].filter(Boolean).join(" · ");
  const source = plain(isObject(row.source) ? row.source.key ?? row.source : row.source);
  const details = h("details", { class: "env-page" },
    h("summary", null, h("bdi", { class: "env-title" }, source.slice(0, 300) || t("envelope.ocr.page", { n: at + 1 })),
      h("span", { class: "dim small" }, words)));
  const fill = () => {
    if (details.open && details.childElementCount === 1) details.append(listed(row.blocks, offer, blocksOf));
  };
  details.addEventListener("toggle", fill);
  details.open = at < OPEN_MAX;
  fill();
  return details;
}

/** @param {Data[]} blocks */
function blocksOf(blocks) {
  const list = h("ol", { class: "env-blocks" });
  const tail = grown(blocks, list, (each) => {
    const sure = share(each.confidence);
    return h("li", null, prose(textOf(each.text), { marks: true }), sure === null ? null
      : h("span", { class: "env-sure number", title: t("envelope.confidence") },
        h("span", { class: "unseen" }, `${t("envelope.confidence")} `), percent(sure)));
  });
  return h("div", { class: "env-list" }, list, tail);
}
