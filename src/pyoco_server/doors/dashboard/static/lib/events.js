// One value that others follow.

/**
 * @template T
 */
export class Signal {
  /** @param {T} value */
  constructor(value) {
    /** @type {T} */
    this.value = value;
    /** @type {Set<(value: T) => void>} */
    this.followers = new Set();
  }

  /** @param {T} value */
  set(value) {
    if (Object.is(value, this.value)) return;
    this.value = value;
    for (const follower of [...this.followers]) {
      try {
        follower(value);
      } catch (error) {
        reportError(error); // the others follow all the same
      }
    }
  }

  /**
   * Called at once, and at each change, until the returned function is called.
   * @param {(value: T) => void} follower
   * @returns {() => void}
   */
  follow(follower) {
    this.followers.add(follower);
    follower(this.value);
    return () => this.followers.delete(follower);
  }
}
