// The log of one run, from the gateway: by pages, and as it grows.

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
   * The last lines, or the last ones before one. `hasMore`: there may be more before them.
   * @param {LogFilter} filter
   * @param {LogLine | undefined} before
   * @param {AbortSignal} signal
   * @returns {Promise<LogPage>}
   */
  async last(filter, before, signal) {
    const page = await this.page(filter, [["tail", String(PAGE_LINES)], ...(before ? [["before", before.id]] : [])], signal);
    return { ...page, hasMore: page.lines.filter((line) => line.event !== "gap").length >= PAGE_LINES };
  }

  /**
   * The first lines, or the first ones after one. `hasMore`: more follow.
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
   * New lines as they come. Resolves with true when the log is complete, with false when it was cut off: go on later.
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
