// An interactive heat map over the operand grid: op1 to the right, op2 upwards.

import { css, page_colour } from "./colours.js";
import { h } from "./dom.js";

const OUTLINE = [255, 45, 149]; // not in any colour map
const MAX_OUTLINE = 0.3; // share of pixels; above it, the mask shows by brightness only

/**
 * grid: an operand grid, see grid.js. colour(cell): [r, g, b], or null for no value.
 * describe(op1, op2, cell): text shown for a cell. pick(op1, op2): called when a cell is clicked.
 * logarithmic: axes. legend: a colour scale with text(value). empty: what cells without a value are.
 * Below, a place is [row, column].
 */
export function heatmap({ grid, colour, describe, pick, label, logarithmic = false, legend, empty: empty_text }) {
  const sizes = grid.sides.map((side) => side.length);
  const cell_of = ([row, column]) => row * sizes[1] + column;
  const operands = (place) => place.map((i, axis) => grid.sides[axis][i]);
  const ariaLabel = `${label}. Arrow keys move over the grid${pick ? ", Enter picks" : ""}.`;
  const canvas = h("canvas", { tabIndex: 0, role: "img", ariaLabel });
  const readout = h("p", { className: "readout", ariaLive: "polite" }, "\u00a0");
  const axis_x = h("span", { className: "axis x" });
  const axis_y = h("span", { className: "axis y" });
  const element = h("figure", { className: "heatmap" },
    h("div", { className: "map-frame" }, axis_y, canvas, axis_x),
    legend || empty_text ? h("div", { className: "legend" }, empty_text ? empty_key(empty_text) : null,
      legend ? gradient(legend) : null) : null, readout);
  const state = { mask: null, pointed: null, zoom: null, selected: null };
  const listeners = [];

  /** First row or column (axis 0: op1, 1: op2) of the shown part, and its end. */
  function range(axis) {
    if (!state.zoom) return [0, sizes[axis]];
    const { centre, width } = state.zoom, n = Math.min(width, sizes[axis]);
    const start = Math.min(Math.max(0, centre[axis] - Math.floor(n / 2)), sizes[axis] - n);
    return [start, start + n];
  }

  /** The row or column at a share 0…1 of an axis. */
  function index_at(axis, share) {
    const [first, end] = range(axis);
    const x = logarithmic ? Math.expm1(share * Math.log1p(end - first)) : share * (end - first);
    return Math.min(end - 1, first + Math.floor(x));
  }

  /** The share of an axis at the middle of a row or column. */
  function middle(axis, index) {
    const [first, end] = range(axis);
    const x = index - first + 0.5;
    return logarithmic ? Math.log1p(x) / Math.log1p(end - first) : x / (end - first);
  }

  function draw() {
    const pixels = Math.round(canvas.clientWidth * (devicePixelRatio || 1));
    if (!pixels) return;
    canvas.width = canvas.height = pixels;
    const context = canvas.getContext("2d");
    const image = context.createImageData(pixels, pixels);
    const row_at = Int32Array.from({ length: pixels }, (_, i) => index_at(0, (i + 0.5) / pixels));
    const column_at = Int32Array.from({ length: pixels }, (_, i) => index_at(1, (pixels - i - 0.5) / pixels));
    const empty = page_colour("--empty");
    const background = page_colour("--panel");
    const colours = new Map();
    const { mask } = state;
    const outline = mask ? edges(mask, row_at, column_at, pixels) : null;
    for (let y = 0, k = 0; y < pixels; y++) {
      for (let x = 0; x < pixels; x++, k += 4) {
        const cell = row_at[x] * sizes[1] + column_at[y];
        let c = colours.get(cell);
        if (c === undefined) {
          c = colour(cell) ?? empty;
          if (mask && !mask[cell]) c = c.map((v, i) => Math.round(0.3 * v + 0.7 * background[i]));
          colours.set(cell, c);
        }
        if (outline && outline[y * pixels + x]) c = OUTLINE;
        image.data.set(c, k);
        image.data[k + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
    circle(context, pixels, state.selected, css(page_colour("--ink")), 2);
    circle(context, pixels, state.pointed, css(OUTLINE), 1);
    [axis_x, axis_y].forEach((axis, i) => {
      const [first, end] = range(i), side = grid.sides[i];
      axis.replaceChildren(h("b", {}, side[first]), `op${i + 1} →`, h("b", {}, side[end - 1]));
    });
  }

  /** The pixels on the edge of a mask, or null if there are too many to help. */
  function edges(mask, row_at, column_at, pixels) {
    const on_edge = new Uint8Array(pixels * pixels);
    let total = 0;
    const width = Math.max(1, Math.round(devicePixelRatio || 1));
    for (let y = 0; y < pixels; y++) {
      for (let x = 0; x < pixels; x++) {
        if (!mask[row_at[x] * sizes[1] + column_at[y]]) continue;
        const inside = (i, j) => i >= 0 && j >= 0 && i < pixels && j < pixels
          && mask[row_at[i] * sizes[1] + column_at[j]];
        if (!inside(x - width, y) || !inside(x + width, y) || !inside(x, y - width) || !inside(x, y + width)) {
          on_edge[y * pixels + x] = 1;
          total += 1;
        }
      }
    }
    return total > MAX_OUTLINE * pixels * pixels ? null : on_edge;
  }

  function circle(context, pixels, place, stroke, width) {
    if (!place) return;
    const [x, y] = [middle(0, place[0]) * pixels, (1 - middle(1, place[1])) * pixels];
    context.strokeStyle = stroke;
    context.lineWidth = width * (devicePixelRatio || 1);
    context.beginPath();
    context.arc(x, y, 5 * (devicePixelRatio || 1), 0, 7);
    context.stroke();
  }

  function point(place, notify = true) {
    state.pointed = place;
    readout.textContent = place ? describe(...operands(place), cell_of(place)) : "\u00a0";
    redraw();
    if (notify) for (const listener of listeners) listener(place);
  }

  let scheduled = false;
  function redraw() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => { scheduled = false; draw(); });
  }

  function place_at(event) {
    const box = canvas.getBoundingClientRect();
    const share = (x, length) => Math.min(0.9999, Math.max(0, x / length));
    const across = share(event.clientX - box.left, box.width);
    const up = share(box.bottom - event.clientY, box.height);
    return [index_at(0, across), index_at(1, up)];
  }

  canvas.addEventListener("pointermove", (event) => point(place_at(event)));
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("blur", () => point(null));
  canvas.addEventListener("click", (event) => pick?.(...operands(place_at(event))));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    const from = state.pointed ?? state.selected ?? [0, 1].map((axis) => index_at(axis, 0.5));
    if (step) {
      event.preventDefault();
      const distance = event.shiftKey ? 10 : 1;
      point(from.map((v, i) => Math.min(sizes[i] - 1, Math.max(0, v + distance * step[i]))));
    } else if (event.key === "Enter" && pick) {
      pick(...operands(from));
    }
  });
  new ResizeObserver(redraw).observe(canvas);

  return {
    element,
    outline(mask) { state.mask = mask; redraw(); }, // a mask over cells
    select(cell) { state.selected = [Math.floor(cell / sizes[1]), cell % sizes[1]]; redraw(); },
    zoom(part) { state.zoom = part; redraw(); }, // {centre: place, width}, or null for the whole grid
    point: (place) => point(place, false),
    onpoint(listener) { listeners.push(listener); },
  };
}

/** Link maps of the same grid: pointing at a cell of one points at it in all. */
export function link_maps(maps) {
  for (const map of maps) map.onpoint((place) => maps.forEach((other) => other !== map && other.point(place)));
}

function gradient({ low, high, colour, text }) {
  const canvas = h("canvas", { width: 120, height: 1, className: "gradient", ariaHidden: "true" });
  const context = canvas.getContext("2d");
  for (let i = 0; i < 120; i++) {
    context.fillStyle = css(colour(low + ((high - low) * i) / 119));
    context.fillRect(i, 0, 1, 1);
  }
  return [text(low), canvas, text(high)];
}

/** Legend of cells without a value. */
function empty_key(text) {
  return h("span", { className: "empty-key" }, h("span", { className: "swatch empty" }), text);
}
