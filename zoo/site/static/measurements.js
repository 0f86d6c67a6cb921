// Ticking a row of the table draws its line.
(function () {
  "use strict";
  const chart = document.getElementById("extrapolation");
  const boxes = [...document.querySelectorAll("#settings input[data-series]")];
  const lines = new Map([...chart.querySelectorAll("[data-series]")].map((line) => [line.dataset.series, line]));
  const names = new Map([...document.querySelectorAll("#lines li")].map((item) => [item.dataset.series, item]));
  const first = new Set(boxes.filter((box) => box.defaultChecked).map((box) => box.dataset.series));

  function show() {
    for (const box of boxes) {
      lines.get(box.dataset.series).classList.toggle("off", !box.checked);
      names.get(box.dataset.series).hidden = !box.checked;
    }
    document.getElementById("drawn").textContent = `${boxes.filter((box) => box.checked).length} lines are drawn`;
  }

  function choose(wanted) {
    for (const box of boxes) box.checked = wanted(box.dataset.series);
    show();
  }

  for (const box of boxes) {
    const line = lines.get(box.dataset.series);
    const row = box.closest("tr");
    box.addEventListener("change", show);
    for (const event of ["mouseenter", "focusin"]) row.addEventListener(event, () => line.classList.add("strong"));
    for (const event of ["mouseleave", "focusout"]) row.addEventListener(event, () => line.classList.remove("strong"));
  }
  document.getElementById("draw-first").addEventListener("click", () => choose((key) => first.has(key)));
  document.getElementById("draw-all").addEventListener("click", () => choose(() => true));
  document.getElementById("draw-none").addEventListener("click", () => choose(() => false));
  document.getElementById("draw-tools").hidden = false;
  if (boxes.some((box) => box.checked !== box.defaultChecked)) show(); // A browser may restore ticks of before.
})();
