// What keys do in the list of runs. `j` and `k` work wherever nobody is typing; the others on a row only, since elsewhere
// they scroll the page.

/** @typedef {import("./runs_grid.js").RunGrid} RunGrid */

/**
 * @param {RunGrid} grid
 * @param {KeyboardEvent} event
 * @returns {boolean} whether the key was used
 */
export function gridKey(grid, event) {
  const inGrid = event.target instanceof Element && grid.body.contains(event.target);
  const step = stepOf(grid, event, inGrid);
  if (step !== null) {
    move(grid, step, event.shiftKey);
    return true;
  }
  if (!inGrid) return false;
  return rowKey(grid, event);
}

/**
 * @param {RunGrid} grid
 * @param {KeyboardEvent} event
 * @param {boolean} inGrid
 * @returns {number | null} how far, in rows
 */
function stepOf(grid, event, inGrid) {
  if (event.key === "j" || event.key === "J") return 1;
  if (event.key === "k" || event.key === "K") return -1;
  if (!inGrid) return null;
  const { first, last } = grid.onScreen();
  const page = Math.max(1, last - first - 2);
  const all = grid.list.rows.length;
  /** @type {Record<string, number>} */
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -all, End: all };
  return steps[event.key] ?? null;
}

/**
 * @param {RunGrid} grid
 * @param {number} step
 * @param {boolean} range
 */
function move(grid, step, range) {
  const all = grid.list.rows.length;
  if (all === 0) return;
  const from = grid.list.indexOf(grid.activeId);
  // Nothing is active yet: the first row that can be seen.
  const to = from < 0 ? Math.min(grid.onScreen().first, all - 1) : Math.min(all - 1, Math.max(0, from + step));
  if (range && grid.with.selectable) {
    const { selection } = grid.with;
    if (selection.pivot === null && from >= 0) selection.pivot = grid.activeId;
    selection.range(grid.list.rows, grid.list.indexOf(selection.pivot), to);
    grid.with.onSelect();
  }
  grid.focusRow(to);
}

/**
 * @param {RunGrid} grid
 * @param {KeyboardEvent} event
 */
function rowKey(grid, event) {
  const id = grid.activeId;
  const onRow = event.target instanceof Element && event.target.matches(".runs-row");
  if (id === null) return false;
  if ((event.key === "x" || event.key === "X" || (event.key === " " && onRow)) && grid.with.selectable) {
    grid.select(id, event.shiftKey);
    return true;
  }
  if (event.key === "Enter" && onRow) {
    grid.open(id);
    return true;
  }
  if (event.key === "ArrowRight" || event.key === "ArrowLeft") return aside(grid, event.key === "ArrowRight" ? 1 : -1);
  return false;
}

/**
 * From the row to what is in it, and back.
 * @param {RunGrid} grid
 * @param {number} step
 */
function aside(grid, step) {
  const row = grid.virtual.shown.get(grid.activeId ?? "");
  if (row === undefined) return false;
  const stops = [row.element, ...row.controls.filter((each) => !(/** @type {HTMLElement} */ (each).hidden))];
  const at = stops.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const next = stops[Math.min(stops.length - 1, Math.max(0, at + step))];
  /** @type {HTMLElement} */ (next).focus();
  return true;
}
