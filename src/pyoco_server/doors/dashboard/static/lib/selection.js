// Which rows are selected, and from where a range reaches.

export class Selection {
  constructor() {
    /** @type {Set<string>} */
    this.ids = new Set();
    /** @type {string | null} the row that was chosen last by itself */
    this.pivot = null;
  }

  /** @param {string} id */
  toggle(id) {
    if (!this.ids.delete(id)) this.ids.add(id);
    this.pivot = id;
  }

  /**
   * From the row that was chosen last to this one. O(range)
   * @param {{ run_id: string }[]} rows
   * @param {number} from where the pivot is now; -1: it has gone
   * @param {number} to
   */
  range(rows, from, to) {
    const start = from < 0 ? to : from;
    for (const row of rows.slice(Math.min(start, to), Math.max(start, to) + 1)) this.ids.add(row.run_id);
    this.pivot = rows[start]?.run_id ?? null;
  }

  clear() {
    this.ids.clear();
    this.pivot = null;
  }

  /**
   * What is no longer shown is no longer selected: nobody acts on what they cannot see. O(selected)
   * @param {{ has: (id: string) => boolean }} shown
   */
  retain(shown) {
    for (const id of this.ids) if (!shown.has(id)) this.ids.delete(id);
    if (this.pivot !== null && !shown.has(this.pivot)) this.pivot = null;
  }
}
