// A patch is chosen on the picture; the position bias of every head for it is shown.
window.ZooBias = (function () {
  "use strict";
  const { el } = window.ZooDom;
  const heat = window.ZooHeat;
  const SIDE = 360; // Of the picture, in CSS pixels at most.

  // `ask(row, column, layer)` gives a promise of the answer of the server.
  function panel(ask, patch) {
    const canvas = el("canvas", { class: "patches" });
    const field = el("div", {
      class: "patch-field", role: "application", tabindex: "0", "aria-label": "Patches of the picture",
      "aria-describedby": "patch-help patch-place",
    }, canvas);
    const place = el("p", { id: "patch-place", role: "status", "aria-live": "polite" });
    const layer = el("select", { id: "patch-layer" });
    const shared = el("input", { type: "checkbox", id: "patch-shared" });
    const heads = el("div", { class: "heads" });
    const body = el("section", { class: "bias", "aria-labelledby": "bias-title", hidden: true },
      el("h3", { id: "bias-title" }, "Position bias of a patch"),
      el("p", { id: "patch-help" }, "Click a patch, or move with the arrow keys and press Enter: for each head, "
        + "what its position encoding adds to the attention of that patch to every other one."),
      el("div", { class: "bias-columns" },
        el("div", null, field, place,
          el("div", { class: "field" }, el("label", { for: "patch-layer" }, "Layer"), layer),
          el("div", { class: "choice" }, shared, el("label", { for: "patch-shared" }, "One scale for all heads"))),
        heads));
    // `row` and `column` are where the keys are; `asked` is the patch of the answer at hand.
    const state = {
      source: null, view: null, rows: 0, columns: 0, row: 0, column: 0, asked: null, answer: null, turn: 0,
    };

    function paint() {
      const { source, rows, columns } = state;
      if (!source || !rows) return;
      const view = state.view || middle(source, columns / rows);
      const scale = SIDE / Math.max(columns, rows);
      canvas.width = Math.round(columns * scale);
      canvas.height = Math.round(rows * scale);
      const context = canvas.getContext("2d");
      // The view may be larger than the picture, where a border is added.
      const zoom = [canvas.width / (view.x2 - view.x1), canvas.height / (view.y2 - view.y1)];
      const place = [-view.x1 * zoom[0], -view.y1 * zoom[1], source.width * zoom[0], source.height * zoom[1]];
      context.drawImage(source.image, ...place);
      const step = [canvas.width / columns, canvas.height / rows];
      if (Math.min(...step) >= 6) {
        context.strokeStyle = "rgba(255, 255, 255, 0.35)";
        context.lineWidth = 1;
        context.beginPath();
        for (let x = 1; x < columns; x += 1) {
          context.moveTo(x * step[0], 0);
          context.lineTo(x * step[0], canvas.height);
        }
        for (let y = 1; y < rows; y += 1) {
          context.moveTo(0, y * step[1]);
          context.lineTo(canvas.width, y * step[1]);
        }
        context.stroke();
      }
      if (state.asked) frame(context, step, state.asked.row, state.asked.column, "#ffd166", 3);
      if (!state.asked || state.row !== state.asked.row || state.column !== state.asked.column) {
        frame(context, step, state.row, state.column, "#ffffff", 2);
      }
    }

    // What patches cover unless the server says: the middle, as wide and high as they are.
    function middle(source, share) {
      const width = Math.min(source.width, source.height * share);
      const x1 = (source.width - width) / 2;
      const y1 = (source.height - width / share) / 2;
      return { x1, y1, x2: x1 + width, y2: y1 + width / share };
    }

    function frame(context, step, row, column, colour, width) {
      const [x, y] = [column * step[0], row * step[1]];
      context.lineWidth = width + 2;
      context.strokeStyle = "#000000";
      context.strokeRect(x, y, ...step);
      context.lineWidth = width;
      context.strokeStyle = colour;
      context.strokeRect(x, y, ...step);
    }

    function say(words) {
      place.textContent = words;
    }

    const named = (row, column) => `row ${row + 1} of ${state.rows}, column ${column + 1} of ${state.columns}`;

    function move(row, column) {
      if (!state.rows) return;
      state.row = Math.min(Math.max(row, 0), state.rows - 1);
      state.column = Math.min(Math.max(column, 0), state.columns - 1);
      say(`Patch ${named(state.row, state.column)}; Enter shows its bias.`);
      paint();
    }

    async function choose(row, column) {
      const turn = ++state.turn;
      let answer;
      [state.row, state.column] = [row, column]; // From here on the keys move, whenever the answer comes.
      try {
        answer = await ask(row, column, Number(layer.value || 0));
      } catch (error) {
        if (turn === state.turn && error.name !== "AbortError") {
          state.answer = null;
          body.hidden = false;
          heads.replaceChildren();
          say(error.message);
        }
        return false;
      }
      if (turn !== state.turn) return true; // Another patch was asked for since.
      show(answer);
      return true;
    }

    function show(answer) {
      state.answer = answer;
      [state.rows, state.columns] = answer.grid;
      state.asked = { row: answer.row, column: answer.col };
      if (layer.options.length !== answer.layers) {
        layer.replaceChildren(...Array.from({ length: answer.layers }, (_, one) => new Option(`${one + 1}`, `${one}`)));
      }
      layer.value = `${answer.layer}`;
      body.hidden = false;
      say(`Bias of the patch in ${named(answer.row, answer.col)}, layer ${answer.layer + 1} of ${answer.layers}.`);
      paint();
      drawHeads();
    }

    function drawHeads() {
      const answer = state.answer;
      if (!answer) return;
      if (!answer.heads) {
        heads.replaceChildren(el("p", null, "This layer adds no bias of positions."));
        return;
      }
      const found = answer.heads.map((grid) => (grid ? heat.extremes(grid) : null));
      const known = found.filter(Boolean);
      const whole = { low: Math.min(...known.map((one) => one.low)), high: Math.max(...known.map((one) => one.high)) };
      heads.replaceChildren(...answer.heads.map((grid, head) => {
        if (!found[head]) return el("p", null, `Head ${head + 1} adds no bias of positions.`);
        const { low, high, row, column } = found[head];
        const range = shared.checked ? whole : found[head];
        const words = `bias from ${heat.number(low)} to ${heat.number(high)}, greatest in ${named(row, column)}`;
        const map = el("canvas", { class: "map", role: "img", "aria-label": `Head ${head + 1}: ${words}` });
        heat.draw(map, grid, range.low, range.high);
        const bar = el("canvas", { class: "scale", "aria-hidden": "true" });
        heat.legend(bar);
        const ends = [range.low, range.high].map((end) => el("span", null, heat.number(end)));
        return el("figure", { class: "head" },
          el("figcaption", null, `Head ${head + 1}`), map, bar, el("span", { class: "ends" }, ...ends));
      }));
    }

    const KEYS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    field.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const step = KEYS[event.key];
      if (step) move(state.row + step[0], state.column + step[1]);
      else if (event.key === "Home") move(state.row, 0);
      else if (event.key === "End") move(state.row, state.columns - 1);
      else if (event.key === "Enter" || event.key === " ") choose(state.row, state.column);
      else return;
      event.preventDefault();
    });
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.floor(((event.clientY - box.top) / box.height) * state.rows);
      const column = Math.floor(((event.clientX - box.left) / box.width) * state.columns);
      choose(Math.min(Math.max(row, 0), state.rows - 1), Math.min(Math.max(column, 0), state.columns - 1));
    });
    layer.addEventListener("change", () => choose(state.row, state.column));
    shared.addEventListener("change", drawHeads);

    // The view counts pixels of the file; the picture at hand may be smaller.
    function inPixels(answer, source) {
      const scale = [source.width / answer.width, source.height / answer.height];
      const { x1, y1, x2, y2 } = answer.view;
      return { x1: x1 * scale[0], y1: y1 * scale[1], x2: x2 * scale[0], y2: y2 * scale[1] };
    }

    return {
      body,
      // Another picture or size: the same place of the picture is asked for again, the middle at first.
      async update(source, answer, size) {
        const { asked } = state;
        const before = asked
          ? [(asked.row + 0.5) / state.rows, (asked.column + 0.5) / state.columns]
          : [0.5, 0.5];
        Object.assign(state, { source, view: answer.view ? inPixels(answer, source) : null });
        const side = patch ? Math.max(Math.floor(size / patch), 1) : 1;
        const [rows, columns] = answer.grid || [side, side];
        const place = [before[0] * rows, before[1] * columns].map(Math.floor);
        // Without a grid in the answer, the guess may lie outside.
        if (!(await choose(...place)) && !answer.grid && state.source === source) await choose(0, 0);
      },
      hide() {
        state.turn += 1;
        body.hidden = true;
      },
    };
  }

  return { panel };
})();
