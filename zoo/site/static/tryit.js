// The panel of a model with weights, where the page comes from `zoo browse`.
(async function () {
  "use strict";
  const { el } = window.ZooDom;
  const panel = document.getElementById("try-it");
  const note = document.getElementById("try-it-note");
  if (!panel || !location.protocol.startsWith("http")) return;
  const api = panel.dataset.api;
  const name = panel.dataset.model;
  const WAIT = 120; // Milliseconds after the last move of the slider.
  const ACCEPT = {
    picture: "image/*",
    video: "video/*,image/gif",
    points: ".ply,.pcd,.off,.las,.laz,.bin,.xyz,.txt,.npz,.npy,.stl,.obj",
    drive: ".zip",
    events: ".dat,.raw,.bin,.aedat,.aedat4,.h5,.hdf5,.csv,.npz",
  };
  const THINGS = {
    picture: "a picture",
    video: "a video",
    points: "a point cloud",
    events: "an event recording",
    drive: "a ZIP archive of a data set in the format of nuScenes",
  };

  async function ask(path, options) {
    let reply;
    try {
      reply = await fetch(api + path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The local server does not answer; is zoo browse still running?");
    }
    if (reply.ok) return reply;
    let message = `The server answered ${reply.status}.`;
    try {
      message = (await reply.json()).error || message;
    } catch {
      // Not from our server.
    }
    throw new Error(message);
  }

  let model;
  try {
    if ((await (await ask("status")).json()).ok !== true) return;
    model = (await (await ask("models")).json()).find((one) => one.name === name);
  } catch {
    return; // The note stays: this is some other server.
  }
  if (!model) {
    note.textContent = "The server behind this page does not run this model.";
    return;
  }

  const thing = THINGS[model.input] || "a file";
  const musical = model.input === "music";
  const textual = musical || model.input === "text";
  const state = { body: null, name: "", source: null, running: null, timer: null, turn: 0 };
  const body = document.getElementById("try-it-body");
  const status = el("p", { role: "status", "aria-live": "polite", class: "try-status" });
  const fault = el("p", { role: "alert", class: "fault" });
  const results = el("div", { class: "results" });
  const preview = el("div", { class: "preview" });
  const sizes = Array.isArray(model.sizes) && model.sizes.length ? model.sizes : null;
  const size = sizes ? sizeField() : null;
  const bias = model.patch_bias ? window.ZooBias.panel(askBias, Number(panel.dataset.patch) || null) : null;

  function sizeField() {
    const near = sizes.indexOf(model.default_size);
    const range = { min: 0, max: sizes.length - 1, step: 1, value: Math.max(near, 0) };
    const slider = el("input", { type: "range", id: "size", ...range });
    const output = el("output", { for: "size" });
    const field = el("div", { class: "field" }, el("label", { for: "size" }, "Resolution ", output), slider);
    const value = () => sizes[Number(slider.value)];
    const tell = () => {
      output.textContent = `${value()} px`;
      slider.setAttribute("aria-valuetext", `${value()} px${value() === model.default_size ? ", as trained" : ""}`);
    };
    slider.addEventListener("input", () => {
      tell();
      clearTimeout(state.timer);
      state.timer = setTimeout(predict, WAIT);
    });
    tell();
    return { field, value };
  }

  function query(more) {
    const values = new URLSearchParams({ model: name, ...(size ? { size: size.value() } : {}), ...more });
    return values.toString();
  }

  function request(signal) {
    if (textual) {
      const headers = { "Content-Type": "application/json" };
      return { method: "POST", headers, body: JSON.stringify(state.body), signal };
    }
    const headers = { "Content-Type": "application/octet-stream", "X-Filename": encodeURIComponent(state.name) };
    return { method: "POST", headers, body: state.body, signal };
  }

  async function askBias(row, col, layer) {
    return (await ask(`bias?${query({ row, col, layer })}`, request())).json();
  }

  async function predict() {
    if (state.body === null) return;
    const turn = ++state.turn; // An answer to an earlier question is dropped.
    if (state.running) state.running.abort();
    state.running = new AbortController();
    results.setAttribute("aria-busy", "true");
    status.textContent = "Running …";
    try {
      const answer = await (await ask(`predict?${query({})}`, request(state.running.signal))).json();
      if (turn !== state.turn) return;
      const served = await window.ZooResults.sent(answer);
      if (turn !== state.turn) return;
      fault.textContent = "";
      status.textContent = window.ZooResults.said(answer);
      preview.hidden = window.ZooResults.hasBoxes(answer) || Boolean(served);
      window.ZooResults.show(results, answer, state.source, served, api);
      const source = served || state.source;
      if (bias && source) await bias.update(source, answer, size ? size.value() : model.default_size);
    } catch (error) {
      if (turn !== state.turn || error.name === "AbortError") return;
      status.textContent = "";
      fault.textContent = error.message;
      results.replaceChildren();
      preview.hidden = false;
      if (bias) bias.hide();
    } finally {
      if (turn === state.turn) results.removeAttribute("aria-busy");
    }
  }

  // The picture as the browser decodes it, turned by EXIF as the model sees it; other files have none.
  async function decode(file) {
    try {
      const image = await createImageBitmap(file, { imageOrientation: "from-image" });
      return { image, width: image.width, height: image.height };
    } catch {
      return null;
    }
  }

  async function take(file, named) {
    clearTimeout(state.timer);
    const turn = ++state.turn;
    if (state.running) state.running.abort();
    const source = model.input === "picture" ? await decode(file) : null;
    if (turn !== state.turn) return;
    Object.assign(state, { body: file, name: named, source });
    preview.replaceChildren();
    if (source) {
      const shown = el("canvas", { role: "img", "aria-label": `The picture ${named}` });
      const scale = Math.min(1, 480 / Math.max(source.width, source.height));
      shown.width = Math.max(Math.round(source.width * scale), 1);
      shown.height = Math.max(Math.round(source.height * scale), 1);
      shown.getContext("2d").drawImage(source.image, 0, 0, shown.width, shown.height);
      preview.append(shown);
    }
    preview.append(el("p", { class: "quiet" }, named));
    await predict();
  }

  async function takeSample(sample, button) {
    for (const other of button.parentElement.children) other.setAttribute("aria-pressed", other === button);
    fault.textContent = "";
    try {
      const reply = await ask(`sample/${encodeURIComponent(sample)}`);
      await take(await reply.blob(), sample);
    } catch (error) {
      fault.textContent = error.message;
    }
  }

  function dropZone() {
    const input = el("input", { type: "file", id: "file", accept: ACCEPT[model.input] });
    const zone = el("div", { class: "drop" }, el("label", { for: "file" }, `Drop ${thing} here, or choose one`), input);
    input.addEventListener("change", () => {
      if (input.files[0]) chosen(input.files[0]);
    });
    const stop = (event, over) => {
      event.preventDefault();
      zone.classList.toggle("over", over);
    };
    zone.addEventListener("dragenter", (event) => stop(event, true));
    zone.addEventListener("dragover", (event) => stop(event, true));
    zone.addEventListener("dragleave", (event) => stop(event, false));
    zone.addEventListener("drop", (event) => {
      stop(event, false);
      const file = event.dataTransfer.files[0];
      if (file) chosen(file);
    });
    return zone;
  }

  function chosen(file) {
    for (const button of body.querySelectorAll(".samples button")) button.setAttribute("aria-pressed", "false");
    take(file, file.name);
  }

  function sampleButtons() {
    if (!model.samples || !model.samples.length) return null;
    const buttons = model.samples.map((sample) => {
      // The name of the file without its suffix.
      const words = sample.replace(/\.[^.]*$/, "").replaceAll("_", " ");
      const button = el("button", { type: "button", "aria-pressed": "false" }, words);
      button.addEventListener("click", () => takeSample(sample, button));
      return button;
    });
    return el("div", { class: "samples", role: "group", "aria-label": "Samples" }, ...buttons);
  }

  // Text goes on from a prompt; music begins out of nothing.
  function promptForm() {
    const field = (words, input) => el("div", { class: "field" }, el("label", { for: input.id }, words), input);
    const prompt = musical ? null : el("textarea", { id: "prompt", rows: 4 });
    const seed = el("input", { type: "number", id: "seed", min: 0, max: 999999, step: 1, value: 0, required: true });
    const warm = { min: 0.1, max: 2, step: 0.05, value: 1, required: true };
    const temperature = el("input", { type: "number", id: "temperature", ...warm });
    const much = { min: 1, max: 2048, step: 1, value: 256, required: true };
    const tokens = el("input", { type: "number", id: "tokens", ...much });
    const form = el("form", null, prompt ? field("Prompt", prompt) : null,
      field("Seed: another one, another piece", seed), field("Temperature: lower is tamer", temperature),
      field("Tokens: more take longer", tokens),
      el("button", { type: "submit" }, musical ? "Make a piece" : "Continue the text"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const [drawn, length] = [Number(seed.value), Number(tokens.value)];
      const options = { seed: drawn, temperature: Number(temperature.value), tokens: length };
      state.body = prompt ? { prompt: prompt.value, ...options } : options;
      predict();
    });
    return form;
  }

  // The first answer should not wait for the model; a server without this address loads it then.
  async function load() {
    status.textContent = "Loading the model …";
    try {
      await ask(`load?${new URLSearchParams({ model: name })}`, { method: "POST" });
    } catch {
      // What is wrong with it a prediction will say.
    }
    const wanted = textual ? "a prompt" : thing;
    if (state.body === null) status.textContent = musical ? "Ready." : `Ready: give it ${wanted}.`;
  }

  note.textContent = "The model runs on this machine; what you give it stays here.";
  const inputs = textual ? [promptForm()] : [dropZone(), sampleButtons()];
  body.append(
    el("div", { class: "try-columns" },
      el("div", null, ...inputs.filter(Boolean), size ? size.field : "", preview),
      el("div", null, status, fault, results)),
    bias ? bias.body : "");
  panel.dataset.ready = "true";
  await load();
  panel.dataset.loaded = "true";
})();
