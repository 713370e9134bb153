// Names seen so far, to complete what somebody types.

const NAMES_MAX = 200;

export class Seen {
  /** @param {HTMLDataListElement} list */
  constructor(list) {
    this.list = list;
    /** @type {Set<string>} */
    this.names = new Set();
  }

  /** @param {Iterable<string | undefined>} names */
  add(names) {
    for (const name of names) {
      if (name === undefined || this.names.has(name) || this.names.size >= NAMES_MAX) continue;
      this.names.add(name);
      const option = document.createElement("option");
      option.value = name;
      this.list.append(option);
    }
  }
}
