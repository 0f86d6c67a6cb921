// The form of questions, and the ranking below it, at once after every answer.
(function () {
  "use strict";
  const { el, table, readHash, writeHash } = window.ZooDom;
  const page = window.ZOO_ADVICE;
  const form = document.getElementById("questions");
  const ranking = document.getElementById("ranking");
  const status = document.getElementById("advice-status");
  const EXTENSIONS = { pi: "position interpolation", ntk: "NTK scaling", yarn: "YaRN", rescale: "rescaling" };
  const OPEN = 3; // Encodings that are shown in full at first.

  function choiceField(question) {
    const radios = Object.entries(question.choices).map(([choice, words]) => {
      const id = `${question.id}-${choice}`;
      const radio = el("input", {
        type: "radio", id, name: question.id, value: choice, checked: choice === question.default,
      });
      return el("div", { class: "choice" }, radio, el("label", { for: id }, words));
    });
    return el("fieldset", { "data-question": question.id }, el("legend", null, question.ask), ...radios);
  }

  function numberField(question) {
    const [low, high] = question.number;
    const id = `answer-${question.id}`;
    const whole = Number.isInteger(question.default) && question.id === "side";
    const input = el("input", {
      type: "number", id, name: question.id, min: low, max: high, step: whole ? 1 : "any", value: question.default,
      required: true,
    });
    return el("div", { "data-question": question.id, class: "field" }, el("label", { for: id }, question.ask), input);
  }

  function answers() {
    const given = {};
    for (const question of page.questions) {
      const field = form.elements[question.id];
      if ("number" in question) {
        given[question.id] = field.validity.valid ? field.valueAsNumber : null;
      } else {
        given[question.id] = field.value || null;
      }
    }
    return given;
  }

  // Of an encoding, or a row of a table, with what it was extended by.
  const extended = (one) => (one.extend ? ` with ${EXTENSIONS[one.extend] || one.extend}` : "");

  function seeds(count) {
    return count === 1 ? "one seed" : `${count} seeds`;
  }

  const signed = (value, digits) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);

  function measuredItem(result) {
    const title = page.tables[result.table].title;
    const behind = result.gap ? `${result.gap.toFixed(2)} behind the best` : "the best";
    const aside = result.counts ? "" : "; not counted";
    const value = `${result.metric} ${result.mean.toFixed(2)}`;
    return el("li", null, `Measured: ${value}, ${behind}, ${seeds(result.seeds)} (${title}${aside})`);
  }

  function reasonItem(reason) {
    const points = reason.points ? el("span", { class: "points" }, `${signed(reason.points, 2)} `) : null;
    return el("li", null, points, reason.text, " ",
      el("span", { class: "quiet" }, `[${reason.source.kind}: ${reason.source.ref}]`));
  }

  function triedItem(tried) {
    const options = Object.entries(tried.options).map(([key, value]) => `${key}=${value}`).join(", ");
    const title = page.tables[tried.table].title;
    return el("li", null, `With ${options}: ${tried.mean.toFixed(2)} (${title}, ${seeds(tried.seeds)})`);
  }

  function modelItem(model) {
    const link = el("a", { href: `models/${model.name}.html` }, model.name);
    return el("li", null, "Model: ", link, ` (weights: ${model.weights})`);
  }

  function encodingItem(one) {
    const level = one.level_with_first && one.rank > 1
      ? el("span", { class: "badge level" }, "level with the first within noise")
      : null;
    return el("li", null, el("details", { open: one.rank <= OPEN },
      el("summary", null, el("span", { class: "rank" }, `${one.rank}.`), " ",
        el("strong", null, one.encoding), extended(one), " ",
        el("span", { class: "points" }, `${signed(one.points, 2)} points`), " ", level),
      el("ul", null,
        ...(one.measured.length ? one.measured.map(measuredItem) : [el("li", null, "Not measured on such tokens")]),
        ...one.options_tried.map(triedItem),
        ...one.reasons.map(reasonItem),
        ...one.models.map(modelItem),
        el("li", { class: "quiet" }, `Source: ${one.source}`)),
      ...one.commands.map((command) => el("pre", null, el("code", null, command)))));
  }

  const sizeOf = (row) => (Array.isArray(row.size) ? row.size.join(" × ") : `${row.size}`)
    + (row.condition ? `, ${row.condition}` : "") + (row.kind === "turned" ? ", turned" : "");

  function measuredTable(one) {
    const heads = [...new Set(one.rows.map(sizeOf))];
    const settings = new Map();
    for (const row of one.rows) {
      const options = Object.entries(row.options).map(([key, value]) => `${key}=${value}`).join(", ");
      const name = row.encoding + extended(row) + (options ? ` (${options})` : "");
      if (!settings.has(name)) settings.set(name, new Map());
      settings.get(name).set(sizeOf(row), row.value.toFixed(2) + (row.std === null ? "" : ` ± ${row.std.toFixed(2)}`));
    }
    const rows = [...settings].map(([name, found]) => [name, ...heads.map((head) => found.get(head) || "")]);
    const unit = one.lower ? "less is better" : "in percent";
    return el("details", null, el("summary", null, one.title),
      one.caveat ? el("p", null, one.caveat) : null,
      table(`${one.title}: ${one.metric}, ${unit}`, ["Encoding", ...heads], rows));
  }

  function show() {
    const given = answers();
    for (const question of page.questions) {
      const asked = Object.entries(question.only || {}).every(([key, value]) => given[key] === value);
      form.querySelector(`[data-question="${question.id}"]`).hidden = !asked;
    }
    const kept = {};
    for (const question of page.questions) {
      const value = given[question.id];
      kept[question.id] = value === question.default || value === null ? "" : value;
    }
    writeHash(kept);
    if (!given.tokens) return;
    const found = window.ZooAdvise.advise(page, given);
    const first = found.ranked[0];
    const measured = found.tables.filter((one) => one.rows.length);
    status.textContent = first
      ? `${found.ranked.length} encodings ranked, ${found.excluded.length} excluded. `
        + `First: ${first.encoding}${extended(first)}.`
      : "Every encoding is excluded by these answers.";
    ranking.replaceChildren(
      el("h2", null, "Ranking"),
      ...found.notes.map((note) => el("p", { class: "note" }, note)),
      el("ol", { class: "ranking" }, ...found.ranked.map(encodingItem)),
      el("h2", null, "Excluded"),
      el("ul", null, ...found.excluded.map((one) =>
        el("li", null, el("strong", null, one.encoding), `: ${one.reasons.map((reason) => reason.text).join("; ")}`))),
      el("h2", null, "Our measurements on such tokens"),
      ...(measured.length ? measured.map(measuredTable) : [el("p", null, "None so far.")]));
  }

  function restore() {
    const values = readHash();
    for (const question of page.questions) {
      const field = form.elements[question.id];
      const value = values.get(question.id);
      if ("number" in question) {
        field.value = value === null ? question.default : value;
        continue;
      }
      const known = value !== null && Object.hasOwn(question.choices, value);
      for (const radio of field) radio.checked = radio.value === (known ? value : question.default);
    }
    show();
  }

  const field = (question) => ("number" in question ? numberField(question) : choiceField(question));
  form.append(...page.questions.map(field));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", show);
  window.addEventListener("hashchange", restore);
  restore();
})();
