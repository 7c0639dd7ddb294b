// The diagram of a circuit: positions from left to right, layers from bottom to top.

import { fit_width } from "./charts.js";
import { number, s } from "./dom.js";

const COLOURS = {
  op1: "var(--plus)", operator: "var(--operator)", op2: "var(--times)", last: "var(--minus)", answer: "var(--divide)",
};
const DASHES = [false, true, "dotted"]; // of the first, second and third token of a number
const MIN_EFFECT = 0.05; // of an MLP, as a share of the largest MLP effect
const SPACING = 15; // of arrows
const MAX_GAP = 110, MIN_GAP = 26; // between positions
const NARROW = 60; // a gap in which names of positions are drawn steep, and those of layers and MLPs short

export function head_name({ layer, head }) {
  return `L${layer}H${head}`;
}

/** Whether a position has a name: op1, op1.2, operator, last, answer.1…; others are the template's. */
export function is_named(position) {
  return Object.hasOwn(COLOURS, position.split(".")[0]);
}

/** Colour and dashes of a position's lines. */
export function position_style(position) {
  const [name, token] = position.split(".");
  return { colour: COLOURS[name], dashed: DASHES[((token ?? 1) - 1) % DASHES.length] };
}

/** The diagram as wide as there is room for. pick(name): called when a head is clicked. drawn(): when it was drawn. */
export function draw_diagram(circuit, pick, drawn) {
  return fit_width("scroller", (width) => {
    const svg = draw(circuit, pick, width);
    queueMicrotask(drawn);
    return svg;
  });
}

/** Places in the diagram; the height of a layer depends on its number of arrows. */
function places(lanes, arrows, available) {
  const gap_in = (left, right) => Math.min(MAX_GAP, Math.max(MIN_GAP, (available - left - right) / (lanes.length - 1)));
  const is_narrow = gap_in(76, 30) < NARROW;
  const [left, right, foot] = is_narrow ? [48, 26, 68] : [76, 30, 40];
  const gap = gap_in(left, right);
  const heights = arrows.map((rows) => 26 + SPACING * rows.length);
  const height = heights.reduce((a, b) => a + b, 0) + foot + 10;
  return {
    is_narrow, gap, height, foot,
    width: left + (lanes.length - 1) * gap + right,
    x: (position) => left + lanes.indexOf(position) * gap,
    bottom: (layer) => height - foot - heights.slice(0, layer).reduce((a, b) => a + b, 0),
    top: (layer) => height - foot - heights.slice(0, layer + 1).reduce((a, b) => a + b, 0) + 12,
  };
}

function draw(circuit, pick, available) {
  const lanes = circuit.positions.filter((p) => is_named(p) || circuit.roles.some((r) => r.reads === p));
  const mlp_effects = Object.entries(circuit.effects).map(([position, { mean }]) => [position, mean.mlps]);
  const arrows = mlp_effects[0][1].map((_, layer) => circuit.roles.filter((r) => r.layer === layer));
  const place = places(lanes, arrows, available);
  const { x, width, height } = place;
  const svg = s("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, class: "diagram", role: "group",
    "aria-label": "The circuit's heads and MLPs",
  }, lanes.map((lane) => lane_of(lane, place)));
  const largest = Math.max(...mlp_effects.flatMap(([, effects]) => effects));
  arrows.forEach((rows, layer) => {
    const top = place.top(layer);
    svg.append(s("text", { x: 2, y: top + 4, class: "tick" }, place.is_narrow ? `L${layer}` : `layer ${layer}`));
    for (const [position, effects] of mlp_effects) {
      if (!lanes.includes(position) || effects[layer] < MIN_EFFECT * largest) continue;
      svg.append(...mlp(layer, position, effects[layer], place));
    }
    rows.forEach((row, i) => {
      const is_last = lanes.at(-1) === row.acts_at;
      svg.append(arrow(row, x(row.reads), x(row.acts_at), place.bottom(layer) - 6 - SPACING * i, is_last, pick));
    });
  });
  return svg;
}

/** A position's line and its name. */
function lane_of(lane, { x, height, foot, is_narrow }) {
  const y = height - foot + 8;
  const steep = { transform: `translate(${x(lane) + 4} ${y + 10}) rotate(-60)`, class: "label end" };
  return [
    s("line", { x1: x(lane), x2: x(lane), y1: 6, y2: y, class: "lane" }),
    s("text", is_narrow ? steep : { x: x(lane), y: height - 12, class: "label middle" }, lane),
  ];
}

function mlp(layer, position, effect, { x, top, gap, is_narrow }) {
  const width = Math.min(38, gap - 4);
  return [
    s("rect", { x: x(position) - width / 2, y: top(layer) - 8, width, height: 16, rx: 3, class: "mlp" },
      s("title", {}, `MLP ${layer} at ${position}: effect ${number(effect)}`)),
    s("text", { x: x(position), y: top(layer) + 3.5, class: "mlp-name middle" }, is_narrow ? "MLP" : `MLP${layer}`),
  ];
}

/** A head at height y: an arrow between two positions, or a loop at one; there, its name is on the side with more room. */
function arrow(row, from, to, y, is_last, pick) {
  const name = head_name(row);
  const is_loop = from === to;
  const path = is_loop ? `M${from} ${y + 4} c-26 0 -26 -8 -4 -8` : `M${from} ${y} H${to - 7}`;
  const tip = is_loop ? `M${to} ${y - 4} l-7 -4 v8 z` : `M${to - 1} ${y} l-8 -4 v8 z`;
  const label = is_loop && is_last ? { x: from - 24, y: y + 3, class: "head-name end" }
    : { x: from + 9, y: is_loop ? y + 3 : y - 2.5, class: "head-name" };
  const onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    pick(name);
  };
  return s("g", {
    class: `arrow${row.shared ? " shared" : ""}`, tabindex: 0, role: "button", "data-head": name,
    "aria-label": `${name}, reads ${row.reads}, acts at ${row.acts_at}`, onclick: () => pick(name), onkeydown,
  },
  s("path", { d: path, class: "hit" }),
  s("circle", { cx: from, cy: is_loop ? y + 4 : y, r: 3 }),
  s("path", { d: path }),
  s("path", { d: tip, class: "tip" }),
  s("text", label, name));
}
