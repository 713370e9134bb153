// What tests look for in a page. Evaluated inside of it, as one value with a function for each question.
({
  /** Whatever somebody can press or fill in and that has no name to be read aloud. */
  nameless() {
    const usable = "a[href], button, input, select, textarea, summary, [role=button], [tabindex='0']";
    const words = (each) => (each.getAttribute("aria-labelledby") || "").split(" ")
      .map((id) => document.getElementById(id)?.textContent ?? "").join("");
    const name = (each) => each.getAttribute("aria-label") || each.title || each.textContent.trim() || words(each);
    return [...document.querySelectorAll(usable)]
      .filter((each) => each.checkVisibility() && !each.labels?.length && !name(each))
      .map((each) => each.outerHTML.slice(0, 150));
  },

  /** The levels of the headings, in order. */
  headings() {
    return [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")]
      .filter((each) => each.checkVisibility()).map((each) => Number(each.tagName[1]));
  },

  /** Ids that are there twice. */
  twins() {
    const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
    return ids.filter((id, at) => ids.indexOf(id) !== at);
  },

  /** Text whose colour, as the browser has computed it, is too near to what lies behind it: below 4.5:1. */
  faint() {
    const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      return [r, g, b, a / 255];
    };
    const over = (top, under) => [0, 1, 2].map((at) => top[at] * top[3] + under[at] * (1 - top[3]));
    const light = (colour) => colour.map((each) => each / 255)
      .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
      .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (element) => {
      const layers = [];
      for (let each = element; each; each = each.parentElement) {
        layers.push(rgba(getComputedStyle(each).backgroundColor));
        if (layers.at(-1)[3] === 1) break;
      }
      return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
    };
    const counts = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) &&
      !element.closest("svg, noscript, :disabled, [aria-hidden=true]") && element.getBoundingClientRect().width >= 2;
    const faint = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode.textContent.trim();
      const element = walker.currentNode.parentElement;
      if (text === "" || !counts(element)) continue;
      const ground = behind(element);
      const ink = over(rgba(getComputedStyle(element).color), ground);
      const [dark, bright] = [light(ink), light(ground)].sort((one, other) => one - other);
      const contrast = (bright + 0.05) / (dark + 0.05);
      if (contrast < 4.49) faint.add(`${contrast.toFixed(2)} ${element.tagName}.${element.className}: ${text.slice(0, 40)}`);
    }
    return [...faint];
  },

  /** What has the focus, and whether one can see that it has: null when nothing has it. */
  focused() {
    const at = document.activeElement;
    if (!at || at === document.body) return null;
    const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(at);
    return [at.outerHTML.slice(0, 100), (outlineStyle !== "none" && outlineWidth !== "0px") || boxShadow !== "none"];
  },

  /** How many pictures move. */
  moving() {
    return document.getAnimations().filter((each) => each.playState === "running").length;
  },

  /** Elements that only a text could have made, addresses that are code, and what such code would have left behind. */
  obeyed() {
    const made = document.querySelectorAll("img[src='x'], script:not([src]), [onerror], iframe, object, embed");
    const addresses = [...document.querySelectorAll("[href], [src], [action], [formaction]")]
      .flatMap((each) => ["href", "src", "action", "formaction"].map((name) => each.getAttribute(name) ?? ""))
      .filter((value) => /^\s*(javascript|data|vbscript):/i.test(value));
    return [...[...made].map((each) => each.outerHTML), ...addresses, ...(window.pwned === undefined ? [] : [window.pwned])];
  },

  /** Scroll to the end, again and again, until the row of this run is there. How many rows are then; -1: never. */
  async reach(id) {
    const began = performance.now();
    while (performance.now() - began < 60_000) {
      scrollTo(0, document.documentElement.scrollHeight);
      await new Promise((done) => setTimeout(done, 30));
      if (document.querySelector(`[data-id="${id}"]`)) return document.querySelectorAll("[data-id]").length;
    }
    return -1;
  },
})
