/* Search works in a worker, and browsers start none for a page that was opened from a folder (file://). There, a hidden
   frame takes its place: the same script, with the three functions that a worker has and a frame has not. */
(() => {
  if (location.protocol !== "file:") return;

  class FrameWorker extends EventTarget {
    #waiting = [];
    #frame = document.createElement("iframe");

    constructor(address) {
      super();
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = async (...addresses) => {
        for (const each of addresses) await load(inside, each);
      };
      load(inside, address).then(() => {
        const waiting = this.#waiting;
        this.#waiting = null;
        for (const data of waiting) this.postMessage(data);
      });
    }

    postMessage(data) {
      if (this.#waiting) this.#waiting.push(data);
      else this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
  }

  function load(inside, address) {
    return new Promise((resolve, reject) => {
      const script = inside.document.createElement("script");
      Object.assign(script, { src: address, onload: resolve, onerror: reject });
      inside.document.body.append(script);
    });
  }

  // By the second name the search script knows where it is, and finds the letters of other languages beside it.
  window.Worker = window.IFrameWorker = FrameWorker;
})();
