// Small pictures, drawn here: no font and no file has to come for them. They repeat what a text beside them says.

import { svg } from "./dom.js";

/** Each is one path in a square of 16 by 16, drawn as a line. */
const PATHS = {
  pending: "M8 4.5V8l2.2 1.6M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0Z",
  running: "M5.5 3.8v8.4L12 8 5.5 3.8Z",
  cancelling: "M5 5.5v5M8 5.5v5M11 5.5v5",
  completed: "M3.2 8.6 6.4 12l6.4-7.6",
  failed: "M4.2 4.2l7.6 7.6M11.8 4.2l-7.6 7.6",
  cancelled: "M3.8 12.2l8.4-8.4M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0Z",
  stale: "M8 5.2v3.4M8 11v.2M8 1.8l6.6 11.8H1.4L8 1.8Z",
  idle: "M4 8h8",
  gone: "M3 3l10 10M6.2 4.2A6 6 0 0 1 13.6 8M2.4 8a6 6 0 0 0 7.4 3.8",
  warning: "M8 5.2v3.4M8 11v.2M8 1.8l6.6 11.8H1.4L8 1.8Z",
  danger: "M8 4.6v4M8 11v.2M5.4 1.8h5.2l3.6 3.6v5.2l-3.6 3.6H5.4l-3.6-3.6V5.4l3.6-3.6Z",
  search: "M10.2 10.2 14 14M11.4 6.7a4.7 4.7 0 1 1-9.4 0 4.7 4.7 0 0 1 9.4 0Z",
  close: "M4.2 4.2l7.6 7.6M11.8 4.2l-7.6 7.6",
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8v-8Z",
  key: "M9.2 6.8 14 2M12 4l1.6 1.6M9.8 9.6a3.4 3.4 0 1 1-6.8 0 3.4 3.4 0 0 1 6.8 0Z",
  theme: "M8 2a6 6 0 1 0 0 12V2Z",
  help: "M5.8 6a2.2 2.2 0 1 1 3.3 1.9c-.7.4-1.1.8-1.1 1.6M8 11.8v.2",
  upload: "M8 11V2.5M4.6 5.6 8 2.2l3.4 3.4M2.5 13.5h11",
  download: "M8 2.2v8.5M4.6 7.6 8 11l3.4-3.4M2.5 13.5h11",
  repeat: "M2.8 8a5.2 5.2 0 0 1 9-3.6L13.5 6M13.5 2.6V6h-3.4M13.2 8a5.2 5.2 0 0 1-9 3.6L2.5 10M2.5 13.4V10h3.4",
  stop: "M4 4h8v8H4V4Z",
  eye: "M1.5 8S4 3.8 8 3.8 14.5 8 14.5 8 12 12.2 8 12.2 1.5 8 1.5 8ZM9.8 8a1.8 1.8 0 1 1-3.6 0 1.8 1.8 0 0 1 3.6 0Z",
  hidden: "M2 2l12 12M6 4.1A6.6 6.6 0 0 1 14.5 8a9 9 0 0 1-2 2.4M4 5.4A10 10 0 0 0 1.5 8 7 7 0 0 0 10 11.9",
  star: "M8 1.8l1.9 4 4.3.6-3.1 3 .8 4.4L8 11.7l-3.9 2.1.8-4.4-3.1-3 4.3-.6L8 1.8Z",
  trash: "M2.8 4.2h10.4M6.2 4V2.4h3.6V4M4.2 4.4l.6 9h6.4l.6-9",
  minus: "M3.5 8h9",
  plus: "M3.5 8h9M8 3.5v9",
  fit: "M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  pause: "M5.6 4v8M10.4 4v8",
  skip: "M4 4.4 8.8 8 4 11.6V4.4ZM11.8 4.4v7.2",
  down: "M4 6.2 8 10l4-3.8",
};

/** @typedef {keyof typeof PATHS} Icon */

/**
 * @param {Icon} name
 * @returns {SVGSVGElement}
 */
export function icon(name) {
  return svg("svg", { class: `icon icon-${name}`, viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: PATHS[name] }));
}
