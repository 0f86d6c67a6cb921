// Elements from values: text stays text, whatever it holds.
window.ZooDom = (function () {
  "use strict";

  function el(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value === true) made.setAttribute(key, "");
      else made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  // A table with a caption, in a box that scrolls by itself.
  function table(caption, head, rows) {
    const kind = (cell) => (/^[-+\d.,% ±]+$/.test(cell) ? "number" : null);
    const body = rows.map(([first, ...rest]) => el("tr", null,
      el("th", { scope: "row" }, first),
      ...rest.map((cell) => el("td", { class: kind(cell) }, cell))));
    const made = el("table", { class: "numbers" }, el("caption", null, caption),
      el("thead", null, el("tr", null, ...head.map((words) => el("th", { scope: "col" }, words)))),
      el("tbody", null, ...body));
    const box = { class: "scroll", role: "group", tabindex: "0", "aria-label": `Table: ${caption}` };
    return el("div", box, made);
  }

  // The part of the address after "#", as a map; it survives a reload and can be sent to others.
  function readHash() {
    return new URLSearchParams(location.hash.slice(1));
  }

  function writeHash(values) {
    const kept = new URLSearchParams();
    for (const [key, value] of Object.entries(values)) if (value !== "" && value !== null) kept.set(key, value);
    const hash = kept.toString();
    if (hash === location.hash.slice(1)) return;
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }

  return { el, table, readHash, writeHash };
})();
