// Heat maps of small grids of numbers.
window.ZooHeat = (function () {
  "use strict";
  // From low to high; lightness rises all the way, so that it reads without colours too.
  const STOPS = [[25, 18, 60], [70, 35, 120], [150, 45, 115], [220, 85, 70], [245, 160, 60], [252, 236, 150]];

  function colour(share) {
    const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
    const low = Math.min(Math.floor(place), STOPS.length - 2);
    return STOPS[low].map((value, channel) => Math.round(value + (place - low) * (STOPS[low + 1][channel] - value)));
  }

  // Least, greatest and where the greatest is, of the finite numbers in rows of columns; null where there are none.
  function extremes(grid) {
    let found = null;
    grid.forEach((row, y) => row.forEach((value, x) => {
      if (typeof value !== "number" || !Number.isFinite(value)) return;
      if (!found) found = { low: value, high: value, row: y, column: x };
      if (value < found.low) found.low = value;
      if (value > found.high) Object.assign(found, { high: value, row: y, column: x });
    }));
    return found;
  }

  // A pixel for each number; the style sheet enlarges it without smoothing.
  function draw(canvas, grid, low, high) {
    canvas.width = grid[0].length;
    canvas.height = grid.length;
    const context = canvas.getContext("2d");
    const picture = context.createImageData(canvas.width, canvas.height);
    grid.flat().forEach((value, place) => {
      const shown = typeof value === "number" && Number.isFinite(value);
      const [red, green, blue] = shown ? colour(high > low ? (value - low) / (high - low) : 0.5) : [128, 128, 128];
      picture.data.set([red, green, blue, shown ? 255 : 60], 4 * place);
    });
    context.putImageData(picture, 0, 0);
  }

  function legend(canvas) {
    const count = 128;
    draw(canvas, [Array.from({ length: count }, (_, place) => place)], 0, count - 1);
  }

  // Two or three digits that tell numbers of any size apart.
  function number(value) {
    const size = Math.abs(value);
    const extreme = size !== 0 && (size < 0.01 || size >= 10000);
    const text = extreme ? value.toExponential(1) : value.toFixed(size < 10 ? 2 : 1);
    return text.replace("-", "−");
  }

  return { colour, draw, extremes, legend, number };
})();
