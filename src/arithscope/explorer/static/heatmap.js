// Values over the operand square, op1 to the right and op2 upwards: to look at, to hover over, to pick from.

import { css, page_colour } from "./colours.js";
import { h } from "./dom.js";

const LINE = [255, 45, 149]; // of outlines: no colour map has it
const CROWDED = 0.3; // share of pixels that would be outline: then prompts are only told apart by brightness

/**
 * colour(cell) → [r, g, b], or null where there is nothing; cells are op1 · size + op2.
 * describe(op1, op2) → what is said of a cell. pick(op1, op2): a cell was chosen.
 * logarithmic: for products, whose legal prompts lie along the axes. window: [op1, op2, numbers] of a part to enlarge.
 */
export function heatmap({ size, colour, describe, pick, label, logarithmic = false, legend }) {
  const canvas = h("canvas", { tabIndex: 0, role: "img", ariaLabel: `${label}. Arrow keys move over the square${pick ? ", Enter picks" : ""}.` });
  const said = h("p", { className: "readout", ariaLive: "polite" }, "\u00a0");
  const axis_x = h("span", { className: "axis x" });
  const axis_y = h("span", { className: "axis y" });
  const element = h("figure", { className: "heatmap" },
    h("div", { className: "plate" }, axis_y, canvas, axis_x),
    legend ? gradient(legend) : null, said);
  const state = { mask: null, at: null, window: null, fixed: null };
  const listeners = [];

  function range(which) {
    if (!state.window) return [0, size];
    const n = Math.min(state.window[2], size);
    const start = Math.min(Math.max(0, state.window[which] - Math.floor(n / 2)), size - n);
    return [start, start + n];
  }

  /** The operand at a share 0…1 of an axis, and back: the middle of an operand's cell. */
  function operand(which, share) {
    const [first, end] = range(which);
    const x = logarithmic ? Math.expm1(share * Math.log1p(end - first)) : share * (end - first);
    return Math.min(end - 1, first + Math.floor(x));
  }

  function middle(which, value) {
    const [first, end] = range(which);
    const x = value - first + 0.5;
    return logarithmic ? Math.log1p(x) / Math.log1p(end - first) : x / (end - first);
  }

  function draw() {
    const pixels = Math.round(canvas.clientWidth * (devicePixelRatio || 1));
    if (!pixels) return;
    canvas.width = canvas.height = pixels;
    const context = canvas.getContext("2d");
    const image = context.createImageData(pixels, pixels);
    const across = Int32Array.from({ length: pixels }, (_, i) => operand(0, (i + 0.5) / pixels));
    const up = Int32Array.from({ length: pixels }, (_, i) => operand(1, (pixels - i - 0.5) / pixels));
    const nothing = page_colour("--nothing");
    const paper = page_colour("--panel");
    const colours = new Map();
    const { mask } = state;
    const outlined = mask ? edges(mask, across, up, pixels) : null;
    for (let y = 0, k = 0; y < pixels; y++) {
      for (let x = 0; x < pixels; x++, k += 4) {
        const cell = across[x] * size + up[y];
        let c = colours.get(cell);
        if (c === undefined) {
          c = colour(cell) ?? nothing;
          if (mask && !mask[cell]) c = c.map((v, i) => Math.round(0.3 * v + 0.7 * paper[i]));
          colours.set(cell, c);
        }
        if (outlined && outlined[y * pixels + x]) c = LINE;
        image.data.set(c, k);
        image.data[k + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
    mark(context, pixels, state.fixed, css(page_colour("--ink")), 2);
    mark(context, pixels, state.at, css(LINE), 1);
    const [[left, right], [bottom, top]] = [range(0), range(1)];
    axis_x.replaceChildren(h("b", {}, left), "op1 →", h("b", {}, right - 1));
    axis_y.replaceChildren(h("b", {}, bottom), "op2 →", h("b", {}, top - 1));
  }

  function edges(mask, across, up, pixels) {
    const found = new Uint8Array(pixels * pixels);
    let total = 0;
    const width = Math.max(1, Math.round(devicePixelRatio || 1));
    for (let y = 0; y < pixels; y++) {
      for (let x = 0; x < pixels; x++) {
        if (!mask[across[x] * size + up[y]]) continue;
        const inside = (i, j) => i >= 0 && j >= 0 && i < pixels && j < pixels && mask[across[i] * size + up[j]];
        if (!inside(x - width, y) || !inside(x + width, y) || !inside(x, y - width) || !inside(x, y + width)) {
          found[y * pixels + x] = 1;
          total += 1;
        }
      }
    }
    return total > CROWDED * pixels * pixels ? null : found;
  }

  function mark(context, pixels, cell, colour_text, width) {
    if (!cell) return;
    const [x, y] = [middle(0, cell[0]) * pixels, (1 - middle(1, cell[1])) * pixels];
    context.strokeStyle = colour_text;
    context.lineWidth = width * (devicePixelRatio || 1);
    context.beginPath();
    context.arc(x, y, 5 * (devicePixelRatio || 1), 0, 7);
    context.stroke();
  }

  function point(cell, spread = true) {
    state.at = cell;
    said.textContent = cell ? describe(...cell) : "\u00a0";
    schedule();
    if (spread) for (const listener of listeners) listener(cell);
  }

  let waiting = false;
  function schedule() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  function under(event) {
    const box = canvas.getBoundingClientRect();
    const share = (x, length) => Math.min(0.9999, Math.max(0, x / length));
    return [operand(0, share(event.clientX - box.left, box.width)), operand(1, share(box.bottom - event.clientY, box.height))];
  }

  canvas.addEventListener("pointermove", (event) => point(under(event)));
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("blur", () => point(null));
  canvas.addEventListener("click", (event) => pick?.(...under(event)));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    const from = state.at ?? state.fixed ?? [0, 1].map((which) => operand(which, 0.5));
    if (step) {
      event.preventDefault();
      const far = event.shiftKey ? 10 : 1;
      point(from.map((v, i) => Math.min(size - 1, Math.max(0, v + far * step[i]))));
    } else if (event.key === "Enter" && pick) {
      pick(...from);
    }
  });
  new ResizeObserver(schedule).observe(canvas);

  return {
    element,
    outline(mask) { state.mask = mask; schedule(); },
    fix(cell) { state.fixed = cell; schedule(); },
    zoom(window) { state.window = window; schedule(); },
    point: (cell) => point(cell, false),
    onpoint(listener) { listeners.push(listener); },
    redraw: schedule,
  };
}

/** Several maps of the same square: what is pointed at in one is pointed at in all. */
export function together(maps) {
  for (const map of maps) map.onpoint((cell) => maps.forEach((other) => other !== map && other.point(cell)));
}

function gradient({ low, high, colour, text }) {
  const canvas = h("canvas", { width: 120, height: 1, className: "gradient", ariaHidden: "true" });
  const context = canvas.getContext("2d");
  for (let i = 0; i < 120; i++) {
    context.fillStyle = css(colour(low + ((high - low) * i) / 119));
    context.fillRect(i, 0, 1, 1);
  }
  return h("div", { className: "legend" }, text(low), canvas, text(high));
}
