// The circuit: which heads and MLPs matter and where, what the heads look at, and how few suffice.

import { get, run_path } from "../api.js";
import { line_chart, matrix } from "../charts.js";
import { viridis } from "../colours.js";
import { OPERATOR_COLOURS, buttons, h, interval, number, operator_buttons, percent, s } from "../dom.js";
import { note } from "../state.js";

const MEASURES = [["log_ratio", "log ratio"], ["probability", "probability (Eq. 1)"], ["logit", "logit"]];
const POSITION_COLOURS = { op1: "var(--plus)", operator: "var(--operator)", op2: "var(--times)", last: "var(--minus)" };
const LARGE = 0.05; // of the largest MLP effect: from here on an MLP is drawn

export async function show(root, params, { run, still }) {
  const state = {
    operator: params.get("operator") ?? run.operators[0],
    measure: params.get("measure") ?? "log_ratio",
    statistic: params.get("statistic") === "median" ? "median" : "mean",
    head: params.get("head") ?? "",
  };
  const body = h("div");
  const change = (values) => { Object.assign(state, values); return load(); };
  root.append(h("h1", {}, "Circuit"),
    h("p", { className: "lead" }, "Each head and each MLP is patched, at one position, with its activation on a counterfactual prompt. The circuit is all MLPs and the fewest heads of largest effect that do as well as all."),
    h("div", { className: "controls panel" },
      operator_buttons(run.operators, state.operator, (operator) => change({ operator, head: "" })),
      buttons("Effect", state.measure, MEASURES, (measure) => change({ measure })),
      buttons("Over prompts", state.statistic, [["mean", "mean"], ["median", "median"]], (statistic) => change({ statistic }))),
    body);

  async function load() {
    note("circuit", { run: run.name, ...state });
    const asked = JSON.stringify(state);
    const found = await get(run_path(run.name, "circuit"), { operator: state.operator, measure: state.measure });
    if (still() && asked === JSON.stringify(state)) draw(found);
  }

  function draw(found) {
    const kept = found.heads.filter((x) => x.in_circuit);
    if (!state.head && kept.length) state.head = `L${kept[0].layer}H${kept[0].head}`;
    const attention = h("section", { className: "panel" });
    const pick = (layer, head) => { state.head = `L${layer}H${head}`; note("circuit", { run: run.name, ...state }); mark(); draw_head(); };
    const t = found.table;
    const diagram = draw_diagram(found, state, pick), maps = draw_maps(found, state, pick);
    function mark() {
      for (const element of [...diagram.querySelectorAll("[data-head]"), ...maps.querySelectorAll("[data-head]")]) {
        element.setAttribute("aria-pressed", String(element.dataset.head === state.head));
      }
    }
    function draw_head() { attention.replaceChildren(...head_panel(found, state.head)); }
    const per_size = (which, dashed, name) => ({ name, dashed, colour: OPERATOR_COLOURS[state.operator], points: found.curve.filter((r) => r.circuit === which && r.measure === "faithfulness").map((r) => ({ x: r.size, ...r })) });
    body.replaceChildren(
      h("p", { className: "panel verdict" }, `The circuit for this operator has ${kept.length} heads; faithfulness ${interval(t.faithfulness)}, accuracy ${interval(t.accuracy)}; with as many random heads ${interval(t.random_faithfulness)} and ${interval(t.random_accuracy)}. `,
        found.shared.length ? `Shared by all operators: ${found.shared.map(([l, n]) => `L${l}H${n}`).join(", ")}.` : "No head is in the circuit of every operator."),
      h("div", { className: "two" },
        h("section", { className: "panel" }, h("h2", {}, "Diagram"), h("p", { className: "hint" }, "An arrow is a head of the circuit: from the position that gets most of its attention to the position where patching it matters most. A box is an MLP with at least 5 % of the largest MLP effect. Click a head."), diagram),
        attention),
      h("h2", {}, "Effects"),
      h("p", { className: "hint" }, "Framed heads are in the circuit. The last column is the whole MLP; heads and MLPs have a scale each. Click a head to see its attention."),
      maps,
      h("div", { className: "two" },
        h("section", { className: "panel" }, line_chart({ title: "Faithfulness with the n heads of largest effect", x_label: "heads", y_label: "faithfulness", y_range: [0, 1], marks: [{ x: kept.length, text: "circuit" }], series: [per_size("found", false, "largest effect"), per_size("random", true, "random")] })),
        found.probe ? h("section", { className: "panel" }, line_chart({ title: "Where the answer can be read off (linear probes)", x_label: "layer", y_label: "accuracy", y_range: [0, 1], marks: [{ x: found.probe.first_answer_layer, text: "first answer layer" }],
          series: Object.entries(POSITION_COLOURS).map(([position, colour]) => ({ name: position, colour, points: found.probe.rows.filter((r) => r.position === position).map((r) => ({ x: r.layer, ...r })) })) })) : null));
    mark();
    draw_head();
  }

  await load();
}

function head_panel(found, name) {
  const [, layer, head] = /^L(\d+)H(\d+)$/.exec(name) ?? [];
  const row = found.roles.find((r) => r.layer === Number(layer) && r.head === Number(head));
  const ranked = found.heads.find((r) => r.layer === Number(layer) && r.head === Number(head));
  if (!ranked) return [h("h2", {}, "Attention"), h("p", {}, "Choose a head.")];
  const title = h("h2", {}, `${name}: attention`);
  const effect = h("p", {}, `Rank ${ranked.rank + 1} of ${found.heads.length}: mean effect ${interval(ranked)} at ${ranked.position}, by ${found.ranked_by.replace("_", " ")}.`);
  if (!row) return [title, effect, h("p", {}, "It is not in this operator's circuit, so its attention was not stored.")];
  const cut = found.isolation.find((r) => r.layer === row.layer && r.head === row.head && r.when === "change");
  const labels = found.labels;
  return [title, effect,
    h("p", {}, "From the last position it attends most to ", h("strong", {}, row.role), ` (${percent(row.share)}). It matters most at `, h("strong", {}, row.acts_at), `, from where it reads ${row.reads} (${percent(row.reads_share)}).`,
      cut ? ` If what it attends to is cut off from earlier tokens, faithfulness changes by ${interval(cut)}.` : ""),
    matrix({
      title: "Mean attention over evaluation prompts: from the row's position to the column's", rows: labels, columns: labels, row_title: "from \\ to",
      value: (i, j) => (j <= i ? row.attention[i][j] : null), colour: viridis, text: (i, j) => `from ${labels[i]} to ${labels[j]}: ${j <= i ? number(row.attention[i][j]) : "not visible"}`,
    })];
}

/** Positions as lanes from left to right, layers from below to above, each as high as its arrows take. */
function draw_diagram(found, state, pick) {
  const lanes = found.labels.filter((p) => ["op1", "operator", "op2", "last"].includes(p) || found.roles.some((r) => r.reads === p));
  const layers = Object.values(found.positions)[0].mlps.length;
  const arrows = Array.from({ length: layers }, (_, layer) => found.roles.filter((r) => r.layer === layer));
  const [width, foot, apart] = [110, 40, 15];
  const heights = arrows.map((rows) => 26 + apart * rows.length);
  const height = heights.reduce((a, b) => a + b, 0) + foot + 10;
  const x = (position) => 76 + lanes.indexOf(position) * width;
  const floor = (layer) => height - foot - heights.slice(0, layer).reduce((a, b) => a + b, 0);
  const svg = s("svg", { viewBox: `0 0 ${60 + lanes.length * width} ${height}`, class: "diagram", role: "group", "aria-label": "The circuit's heads and MLPs" });
  for (const lane of lanes) {
    svg.append(s("line", { x1: x(lane), x2: x(lane), y1: 6, y2: height - foot + 8, class: "lane" }), s("text", { x: x(lane), y: height - 12, class: "label middle" }, lane));
  }
  const largest = Math.max(...Object.values(found.positions).flatMap((p) => p.mlps));
  arrows.forEach((rows, layer) => {
    const top = floor(layer) - heights[layer] + 12;
    svg.append(s("text", { x: 4, y: top + 4, class: "tick" }, `layer ${layer}`));
    for (const [position, { mlps }] of Object.entries(found.positions)) {
      if (!lanes.includes(position) || mlps[layer] < LARGE * largest) continue;
      svg.append(s("rect", { x: x(position) - 19, y: top - 8, width: 38, height: 16, rx: 3, class: "mlp" }, s("title", {}, `MLP ${layer} at ${position}: effect ${number(mlps[layer])}`)),
        s("text", { x: x(position), y: top + 3.5, class: "mlp-name middle" }, `MLP${layer}`));
    }
    rows.forEach((row, i) => {
      const name = `L${row.layer}H${row.head}`;
      const [from, to, at] = [x(row.reads), x(row.acts_at), floor(layer) - 6 - apart * i];
      const itself = from === to;
      const path = itself ? `M${from} ${at + 4} c-26 0 -26 -8 -4 -8` : `M${from} ${at} H${to - 7}`;
      const choose = () => pick(row.layer, row.head);
      svg.append(s("g", { class: `arrow${row.shared ? " shared" : ""}`, tabindex: 0, role: "button", "data-head": name, "aria-label": `${name}, reads ${row.reads}, acts at ${row.acts_at}`, onclick: choose, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } } },
        s("path", { d: path, class: "hit" }), s("circle", { cx: from, cy: itself ? at + 4 : at, r: 3 }), s("path", { d: path }), s("path", { d: itself ? `M${to} ${at - 4} l-7 -4 v8 z` : `M${to - 1} ${at} l-8 -4 v8 z`, class: "tip" }),
        s("text", { x: itself ? from - 56 : from + 9, y: itself ? at + 3 : at - 2.5, class: "head-name" }, name)));
    });
  });
  return h("div", { className: "scroller" }, svg);
}

/** For each position a map of layers × heads, with the MLP beside. */
function draw_maps(found, state, pick) {
  const median = state.statistic === "median";
  const positions = Object.entries(found.positions);
  const of_heads = (p) => (median ? p.head_medians : p.heads), of_mlps = (p) => (median ? p.mlp_medians : p.mlps);
  const largest = (values) => Math.max(1e-12, ...values);
  const head_scale = largest(positions.flatMap(([, p]) => of_heads(p).flat())), mlp_scale = largest(positions.flatMap(([, p]) => of_mlps(p)));
  const kept = new Set(found.heads.filter((x) => x.in_circuit).map((x) => `${x.layer} ${x.head}`));
  const made = positions.map(([position, p]) => {
    const heads = of_heads(p), mlps = of_mlps(p), n = heads[0].length;
    const rows = heads.map((_, i) => heads.length - 1 - i); // the last layer is on top
    const one = matrix({
      title: `at ${position}`, rows: rows.map((l) => `L${l}`), columns: [...heads[0].map((_, j) => `H${j}`), "MLP"],
      value: (i, j) => (j < n ? heads[rows[i]][j] / head_scale : mlps[rows[i]] / mlp_scale), colour: viridis,
      text: (i, j) => `${j < n ? `L${rows[i]}H${j}` : `MLP${rows[i]}`} at ${position}: ${number(j < n ? heads[rows[i]][j] : mlps[rows[i]])}`,
      framed: (i, j) => kept.has(`${rows[i]} ${j}`), pick: (i, j) => { if (j < n) pick(rows[i], j); },
    });
    one.querySelectorAll("tbody tr").forEach((tr, i) => tr.querySelectorAll(".cell").forEach((cell, j) => { if (j < n) cell.dataset.head = `L${rows[i]}H${j}`; else cell.removeAttribute("aria-pressed"); }));
    return h("section", { className: "panel" }, one);
  });
  return h("div", { className: "maps four" }, made);
}
