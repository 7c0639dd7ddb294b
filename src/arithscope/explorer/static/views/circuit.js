// The circuit: effects of heads and MLPs by position, attention patterns, and faithfulness by number of heads.

import { get, run_path } from "../api.js";
import { line_chart, matrix } from "../charts.js";
import { viridis } from "../colours.js";
import { draw_diagram, head_name, is_named, position_style } from "../diagram.js";
import { OPERATOR_COLOURS, buttons, count, h, interval, number, operator_buttons, percent } from "../dom.js";
import { save_settings } from "../state.js";
import { final_position, step_buttons } from "../steps.js";

const MEASURES = [["log_ratio", "log ratio"], ["probability", "probability (Eq. 1)"], ["logit", "logit"]];
const LEAD = "Activation patching: each head and each MLP is patched, at one position, with its activation on a "
  + "counterfactual prompt. The circuit consists of all MLPs and the fewest heads with the largest effects that "
  + "suffice.";
const DIAGRAM_HINT = "An arrow is a head of the circuit, from the position it attends to most to the position where "
  + "patching it has the largest effect. A box is an MLP with at least 5 % of the largest MLP effect. "
  + "Click a head to see its attention pattern.";
const EFFECTS_HINT = "Framed heads are in the circuit. The last column is the MLP. Heads and MLPs have separate colour "
  + "scales. Click a head to see its attention pattern.";

export async function show(root, params, { run, is_current }) {
  const state = {
    operator: params.get("operator") ?? run.operators[0],
    measure: params.get("measure") ?? "log_ratio",
    statistic: params.get("statistic") === "median" ? "median" : "mean",
    head: params.get("head") ?? "",
  };
  const body = h("div");
  const change = (values) => { Object.assign(state, values); return load(); };
  root.append(h("h1", {}, "Circuit"),
    h("p", { className: "lead" }, LEAD),
    h("div", { className: "controls panel" },
      step_buttons(run),
      operator_buttons(run.operators, state.operator, (operator) => change({ operator, head: "" })),
      buttons("Effect", state.measure, MEASURES, (measure) => change({ measure })),
      buttons("Statistic", state.statistic, [["mean", "mean"], ["median", "median"]],
        (statistic) => change({ statistic }))),
    body);

  async function load() {
    save_settings("circuit", { run: run.name, ...state });
    const requested = JSON.stringify(state);
    const circuit = await get(run_path(run.name, "circuit"), { operator: state.operator, measure: state.measure });
    if (is_current() && requested === JSON.stringify(state)) draw(circuit);
  }

  function draw(circuit) {
    const kept = circuit.heads.filter((r) => r.in_circuit);
    if (!state.head && kept.length) state.head = head_name(kept[0]);
    const attention = h("section", { className: "panel" });
    const pick = (name) => {
      state.head = name;
      save_settings("circuit", { run: run.name, ...state });
      mark_head();
      draw_head();
    };
    const diagram = draw_diagram(circuit, pick, () => mark_head());
    const maps = draw_maps(circuit, state.statistic, pick);
    function mark_head() {
      for (const element of [...diagram.querySelectorAll("[data-head]"), ...maps.querySelectorAll("[data-head]")]) {
        element.setAttribute("aria-pressed", String(element.dataset.head === state.head));
      }
    }
    function draw_head() { attention.replaceChildren(...head_panel(circuit, state.head, run)); }
    body.replaceChildren(
      verdict(circuit, kept.length, run.operators.length > 1),
      h("div", { className: "two" },
        h("section", { className: "panel" }, h("h2", {}, "Diagram"), h("p", { className: "hint" }, DIAGRAM_HINT), diagram),
        attention),
      h("h2", {}, "Effects"),
      h("p", { className: "hint" }, EFFECTS_HINT),
      maps,
      h("div", { className: "two" },
        h("section", { className: "panel" }, faithfulness_chart(circuit, kept.length, OPERATOR_COLOURS[state.operator])),
        circuit.probe ? h("section", { className: "panel" }, probe_chart(circuit.probe, run.token)) : null));
    mark_head();
    draw_head();
  }

  await load();
}

/** The circuit's measures beside those of random heads, and the heads that all operators share. */
function verdict({ summary, shared }, heads, has_others) {
  const measures = (faithfulness, accuracy) => `faithfulness ${interval(faithfulness)}, accuracy ${interval(accuracy)}`;
  return h("p", { className: "panel verdict" },
    `The circuit for this operator has ${count(heads, "head")}: ${measures(summary.faithfulness, summary.accuracy)}. `,
    `With as many random heads: ${measures(summary.random_faithfulness, summary.random_accuracy)}. `,
    !has_others ? "" : shared.length ? `Shared by all operators: ${shared.map(([layer, head]) => head_name({ layer, head })).join(", ")}.`
      : "No head is in the circuit of every operator.");
}

function faithfulness_chart({ curve }, heads, colour) {
  const by_size = (circuit, dashed, name) => {
    const rows = curve.filter((r) => r.circuit === circuit && r.measure === "faithfulness");
    return { name, dashed, colour, points: rows.map((r) => ({ x: r.size, ...r })) };
  };
  return line_chart({
    title: "Faithfulness with the n heads with the largest effects", x_label: "heads", y_label: "faithfulness",
    y_range: [0, 1], marks: [{ x: heads, text: "circuit" }],
    series: [by_size("found", false, "largest effects"), by_size("random", true, "random")],
  });
}

function probe_chart({ table, first_answer_layer }, token) {
  const positions = [...new Set(table.map((r) => r.position))].filter(is_named);
  return line_chart({
    title: `Accuracy of linear probes for the ${token}`, x_label: "layer", y_label: "accuracy", y_range: [0, 1],
    marks: [{ x: first_answer_layer, text: `first ${token} layer` }],
    series: positions.map((position) => {
      const rows = table.filter((r) => r.position === position);
      return { name: position, ...position_style(position), points: rows.map((r) => ({ x: r.layer, ...r })) };
    }),
  });
}

function head_panel(circuit, name, run) {
  const ranked = circuit.heads.find((r) => head_name(r) === name);
  const role = circuit.roles.find((r) => head_name(r) === name);
  if (!ranked) return [h("h2", {}, "Attention pattern"), h("p", {}, "Choose a head.")];
  const title = h("h2", {}, `${name}: attention pattern`);
  const effect = h("p", {}, `Rank ${ranked.rank + 1} of ${circuit.heads.length}: mean effect ${interval(ranked)} `,
    `at ${ranked.position}, by ${circuit.ranked_by.replace("_", " ")}.`);
  if (!role) {
    return [title, effect, h("p", {}, "Not in this operator's circuit, so its attention pattern was not stored.")];
  }
  const isolated = circuit.isolation.find((r) => head_name(r) === name && r.when === "change");
  const { positions } = circuit, { attention_pattern } = role;
  return [title, effect,
    h("p", {},
      `From ${final_position(run)} it attends most to `, h("strong", {}, role.attends_to), ` (${percent(role.attention)}). `,
      "Patching it has the largest effect at ", h("strong", {}, role.acts_at),
      `, where it attends most to ${role.reads} (${percent(role.reads_attention)}).`,
      isolated ? ` If the attended position is cut off from earlier tokens, faithfulness changes by ${interval(isolated)}.`
        : ""),
    matrix({
      title: "Mean attention over evaluation prompts, from the row's position to the column's",
      rows: positions, columns: positions, row_title: "from \\ to", colour: viridis,
      value: (i, j) => (j <= i ? attention_pattern[i][j] : null),
      text: (i, j) => `from ${positions[i]} to ${positions[j]}: ${j <= i ? number(attention_pattern[i][j]) : "masked"}`,
    })];
}

/** A matrix of layers × heads for each position, with the MLP as the last column. */
function draw_maps(circuit, statistic, pick) {
  const effects = Object.entries(circuit.effects).map(([position, maps]) => [position, maps[statistic]]);
  const largest = (values) => Math.max(1e-12, ...values);
  const head_scale = largest(effects.flatMap(([, { heads }]) => heads.flat()));
  const mlp_scale = largest(effects.flatMap(([, { mlps }]) => mlps));
  const kept = new Set(circuit.heads.filter((r) => r.in_circuit).map(head_name));
  const panels = effects.map(([position, { heads, mlps }]) => {
    const n = heads[0].length;
    const layers = heads.map((_, i) => heads.length - 1 - i); // the last layer is on top
    const name = (i, j) => head_name({ layer: layers[i], head: j });
    const effect = (i, j) => (j < n ? heads[layers[i]][j] : mlps[layers[i]]);
    const grid = matrix({
      title: `at ${position}`, rows: layers.map((layer) => `L${layer}`),
      columns: [...heads[0].map((_, j) => `H${j}`), "MLP"],
      value: (i, j) => effect(i, j) / (j < n ? head_scale : mlp_scale), colour: viridis,
      text: (i, j) => `${j < n ? name(i, j) : `MLP${layers[i]}`} at ${position}: ${number(effect(i, j))}`,
      is_framed: (i, j) => kept.has(name(i, j)), pick: (i, j) => { if (j < n) pick(name(i, j)); },
    });
    grid.querySelectorAll("tbody tr").forEach((tr, i) => tr.querySelectorAll(".cell").forEach((cell, j) => {
      if (j < n) cell.dataset.head = name(i, j);
      else cell.removeAttribute("aria-pressed");
    }));
    return h("section", { className: "panel" }, grid);
  });
  return h("div", { className: "maps four" }, panels);
}
