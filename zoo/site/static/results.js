// What a model answered, as text, bars, boxes on the picture and files.
window.ZooResults = (function () {
  "use strict";
  const { el, table } = window.ZooDom;
  const COLOURS = ["#ff5d47", "#3ec1ff", "#ffd23e", "#7be06a", "#ff8ae2", "#c7a2ff", "#ff9f45", "#5ff0d2"];
  const percent = (score) => `${(100 * score).toFixed(1)} %`;

  function classes(found) {
    const items = found.map((one) => {
      const bar = el("span", { class: "bar-track", "aria-hidden": "true" }, el("span", { class: "fill" }));
      bar.firstChild.style.width = `${Math.min(Math.max(100 * one.score, 0), 100)}%`;
      const score = el("span", { class: "number" }, percent(one.score));
      return el("li", null, el("span", { class: "class-name" }, one.label), score, bar);
    });
    return el("ol", { class: "classes", "aria-label": "Classes, likeliest first" }, ...items);
  }

  // What was found in space: as many as there are, so in a table that scrolls.
  function objects(found) {
    if (!found.length) return el("p", null, "No objects found.");
    return table(count(found), ["What and where", "Score"], found.map((one) => [one.label, percent(one.score)]));
  }

  const count = (found) => (found.length === 1 ? "1 object found" : `${found.length} objects found`);

  // Boxes over the picture; the table below it says the same in words.
  function boxes(answer, source) {
    const labels = [...new Set(answer.boxes.map((one) => one.label))];
    const colour = (label) => COLOURS[labels.indexOf(label) % COLOURS.length];
    const sides = (one) => [one.x1, one.y1, one.x2, one.y2].map((side) => `${Math.round(side)}`);
    const rows = answer.boxes.map((one) => [one.label, percent(one.score), ...sides(one)]);
    const words = rows.length
      ? table(count(rows), ["Class", "Score", "Left", "Top", "Right", "Bottom"], rows)
      : el("p", null, "No objects found.");
    if (!source) return [words];
    const about = `The picture: ${count(rows)}; the table after it lists them`;
    const canvas = el("canvas", { class: "boxes", role: "img", "aria-label": about });
    const scale = Math.min(1, 960 / Math.max(answer.width, answer.height));
    canvas.width = Math.max(Math.round(answer.width * scale), 1);
    canvas.height = Math.max(Math.round(answer.height * scale), 1);
    const context = canvas.getContext("2d");
    context.drawImage(source.image, 0, 0, canvas.width, canvas.height);
    const line = Math.max(2, canvas.width / 320);
    const text = Math.max(11, canvas.width / 50);
    context.font = `600 ${text}px system-ui, sans-serif`;
    for (const one of answer.boxes) {
      const [x, y] = [one.x1 * scale, one.y1 * scale];
      context.strokeStyle = colour(one.label);
      context.lineWidth = line;
      context.strokeRect(x, y, (one.x2 - one.x1) * scale, (one.y2 - one.y1) * scale);
      const name = `${one.label} ${Math.round(100 * one.score)}`;
      const top = Math.max(y - text * 1.25, 0);
      context.fillStyle = colour(one.label);
      context.fillRect(x - line / 2, top, context.measureText(name).width + text * 0.5, text * 1.25);
      context.fillStyle = "#000000";
      context.fillText(name, x + text * 0.2, top + text * 0.95);
    }
    return [canvas, words];
  }

  // Only data that came along may be shown or saved: never an address elsewhere.
  const isData = (address) => typeof address === "string" && address.startsWith("data:");

  // A picture of the server, where the browser cannot show the file itself.
  async function sent(answer) {
    if (!isData(answer.picture)) return null;
    const image = new Image();
    image.src = answer.picture;
    try {
      await image.decode();
    } catch {
      return null;
    }
    return { image, width: image.naturalWidth, height: image.naturalHeight };
  }

  const hasBoxes = (answer) => answer.kind === "boxes" || Boolean(answer.boxes && answer.boxes.length);
  const PICTURES = {
    points: "The cloud in the colours of its classes",
    scene: "The scene with the boxes that were found",
  };

  // A page that the result came with, of our own server alone; it runs in a frame cut off from this one.
  function framed(answer, api) {
    if (typeof answer.page !== "string" || !/^page\/[0-9a-f]+$/.test(answer.page)) return null;
    const rules = { sandbox: "allow-scripts allow-downloads", title: "The notes of the piece, and a player" };
    return el("iframe", { class: "player", src: api + answer.page, ...rules });
  }

  // `own` is the picture as the browser decoded it, `served` that of the server.
  function show(target, answer, own, served, api) {
    const parts = [];
    const source = served || own;
    if (served && !hasBoxes(answer)) {
      const alt = PICTURES[answer.kind] || "A picture of the input";
      parts.push(el("img", { class: "answer", src: answer.picture, alt }));
    }
    if (answer.note) parts.push(el("p", { class: "note" }, answer.note));
    if (answer.kind === "scene") parts.push(objects(answer.classes));
    else if (answer.classes && answer.classes.length) parts.push(classes(answer.classes));
    if (hasBoxes(answer)) parts.push(...boxes(answer, source));
    const player = framed(answer, api);
    if (player) parts.push(player);
    if (typeof answer.text === "string") parts.push(el("pre", { class: "answer-text" }, answer.text));
    const file = answer.download;
    if (file && isData(file["data-URL"])) {
      parts.push(el("p", null, el("a", { href: file["data-URL"], download: file.name }, `Save ${file.name}`)));
    }
    target.replaceChildren(...parts);
  }

  // A sentence for those who hear the page.
  function said(answer) {
    const time = `${Math.round(answer.milliseconds)} ms`;
    const size = answer.size ? ` at ${answer.size} px` : "";
    if (answer.kind === "scene") return `${count(answer.classes)}, in ${time}`;
    if (hasBoxes(answer)) return `${count(answer.boxes)}${size}, in ${time}`;
    const [best] = answer.classes || [];
    if (best) return `${best.label}, ${percent(best.score)}${size}, in ${time}`;
    return `Answered${size} in ${time}`;
  }

  return { hasBoxes, said, sent, show };
})();
