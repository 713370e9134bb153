// Something that was fetched, as a file on the reader's disk.

import { h } from "./dom.js";

/**
 * @param {Blob} file
 * @param {string} name
 */
export function save(file, name) {
  const address = URL.createObjectURL(file);
  const link = h("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // the browser may still be asking where to put it
}
