// Filters and sorting of the table of models. The rows are in the page; their facts are in ZOO.models.
(function () {
  "use strict";
  const { readHash, writeHash } = window.ZooDom;
  const models = window.ZOO.models;
  const body = document.querySelector("#models tbody");
  const rows = new Map([...body.rows].map((row) => [row.dataset.name, row]));
  const facets = [...document.querySelectorAll("[data-facet]")];
  const search = document.getElementById("search");
  const sort = document.getElementById("sort");
  const heads = [...document.querySelectorAll("[data-sort]")];
  // What a search looks into: all that the row says.
  const words = new Map(models.map((one) => [one.name, `${one.name} ${rows.get(one.name).textContent}`.toLowerCase()]));

  function fits(one, without) {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return wanted.every((word) => words.get(one.name).includes(word))
      && facets.every((facet) => facet === without || !facet.value || one[facet.dataset.facet] === facet.value);
  }

  function recount() {
    for (const facet of facets) {
      const left = models.filter((one) => fits(one, facet));
      const counts = new Map();
      for (const one of left) {
        const value = one[facet.dataset.facet];
        counts.set(value, (counts.get(value) || 0) + 1);
      }
      for (const option of facet.options) {
        const count = option.value ? counts.get(option.value) || 0 : left.length;
        option.textContent = `${option.dataset.label} (${count})`;
      }
    }
  }

  function order() {
    const down = sort.value.startsWith("-");
    const key = sort.value.replace("-", "");
    if (!key) return models;
    const compared = (a, b) => (typeof a[key] === "number" ? a[key] - b[key] : a[key].localeCompare(b[key], "en"));
    return [...models].sort((a, b) => (down ? -1 : 1) * compared(a, b) || a.name.localeCompare(b.name, "en"));
  }

  function show() {
    const found = order().filter((one) => fits(one, null));
    body.replaceChildren(...found.map((one) => rows.get(one.name)));
    document.getElementById("count").textContent = `${found.length} of ${models.length} models`;
    document.getElementById("nothing").hidden = found.length > 0;
    document.getElementById("models").hidden = found.length === 0;
    for (const head of heads) {
      const own = sort.value.replace("-", "") === head.dataset.sort;
      const direction = sort.value.startsWith("-") ? "descending" : "ascending";
      head.closest("th").setAttribute("aria-sort", own ? direction : "none");
    }
    recount();
  }

  function changed() {
    const values = { q: search.value, sort: sort.value };
    for (const facet of facets) values[facet.dataset.facet] = facet.value;
    writeHash(values);
    show();
  }

  function set(select, value) {
    if (![...select.options].some((option) => option.value === value)) {
      if (!value.startsWith("-")) value = "";
      else select.append(new Option(`${value.slice(1)}, descending`, value));
    }
    select.value = value;
  }

  function restore() {
    const values = readHash();
    search.value = values.get("q") || "";
    const asked = values.get("sort") || "";
    set(sort, heads.some((head) => head.dataset.sort === asked.replace("-", "")) ? asked : "");
    for (const facet of facets) set(facet, (values.get(facet.dataset.facet) || "").replace(/^-/, ""));
    show();
  }

  function clear() {
    search.value = "";
    for (const facet of facets) facet.value = "";
    changed();
    search.focus();
  }

  for (const head of heads) {
    head.addEventListener("click", () => {
      const key = head.dataset.sort;
      set(sort, sort.value === key ? `-${key}` : key);
      changed();
    });
  }
  for (const select of [...facets, sort]) select.addEventListener("change", changed);
  search.addEventListener("input", changed);
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const name of ["clear", "clear-too"]) document.getElementById(name).addEventListener("click", clear);
  window.addEventListener("hashchange", restore);
  document.getElementById("filters").hidden = false;
  restore();
})();
