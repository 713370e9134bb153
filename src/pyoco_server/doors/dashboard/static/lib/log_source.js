// Reads the log of one run from the gateway, by pages or as a live stream.

import { getLines, stream } from "./api.js";
import { readLine } from "./log_window.js";
import { queryOf } from "./log_filter.js";

/** @typedef {import("./wire.js").LogLine} LogLine */
/** @typedef {import("./log_filter.js").LogFilter} LogFilter */
/** @typedef {{ lines: LogLine[], hasMore: boolean, isOff: boolean }} LogPage */

export const PAGE_LINES = 1000;

export class LogSource {
  /** @param {string} id */
  constructor(id) {
    this.path = `runs/${encodeURIComponent(id)}/logs`;
  }

  /**
   * The last page, or the page before a line. `hasMore`: there may be earlier lines. Gaps before the first line of such a
   * page are left out: there may be lines between, and the gaps come again with the page that has those.
   * @param {LogFilter} filter
   * @param {LogLine | undefined} before
   * @param {AbortSignal} signal
   * @returns {Promise<LogPage>}
   */
  async last(filter, before, signal) {
    const page = await this.page(filter, [["tail", String(PAGE_LINES)], ...(before ? [["before", before.id]] : [])], signal);
    const hasMore = page.hasMore || page.lines.filter((line) => line.event !== "gap").length >= PAGE_LINES;
    const start = hasMore ? page.lines.findIndex((line) => line.event !== "gap") : 0;
    return { ...page, hasMore, lines: page.lines.slice(start) };
  }

  /**
   * The first page, or the page after a line. `hasMore`: more lines follow.
   * @param {LogFilter} filter
   * @param {LogLine | undefined} after
   * @param {AbortSignal} signal
   * @returns {Promise<LogPage>}
   */
  first(filter, after, signal) {
    return this.page(filter, [["limit", String(PAGE_LINES)], ...(after ? [["after", after.id]] : [])], signal);
  }

  /**
   * @param {LogFilter} filter
   * @param {string[][]} more
   * @param {AbortSignal} signal
   * @returns {Promise<LogPage>}
   */
  async page(filter, more, signal) {
    const told = await getLines(addressOf(this.path, filter, more), signal);
    return { ...told, lines: told.lines.map(readLine).filter((line) => line !== null) };
  }

  /**
   * Stream new lines. Resolves with true once the log is complete, and with false if the stream ended early.
   * @param {LogFilter} filter
   * @param {LogLine | undefined} after
   * @param {AbortSignal} signal
   * @param {(line: LogLine) => void} onLine
   */
  async follow(filter, after, signal, onLine) {
    let ended = false;
    await stream(addressOf(`${this.path}/stream`, filter, after ? [["after", after.id]] : []), {}, {
      signal, onEvent: (event) => {
        if (event.event === "end") ended = true;
        if (event.event !== "line") return;
        const line = readLine(JSON.parse(event.data));
        if (line !== null) onLine(line);
      },
    });
    return ended;
  }
}

/**
 * @param {string} path
 * @param {LogFilter} filter
 * @param {string[][]} more
 */
function addressOf(path, filter, more) {
  const query = new URLSearchParams([...queryOf(filter), ...more]).toString();
  return query === "" ? path : `${path}?${query}`;
}
