// Development over training: curves over checkpoints, and one neuron's activation map at each.

import { get, get_bytes, run_path } from "../api.js";
import { line_chart } from "../charts.js";
import { colour_scale } from "../colours.js";
import { OPERATOR_COLOURS, SIGNS, answer, criterion_buttons, h, notice, number, operator_buttons } from "../dom.js";
import { heatmap } from "../heatmap.js";
import { criterion_of, save_settings } from "../state.js";

export async function show(root, params, { run, is_current }) {
  root.append(h("h1", {}, "Training"));
  if (!run.checkpoints.length) {
    root.append(notice("This run has no training checkpoints; run it with --checkpoints all."));
    return;
  }
  const last = run.checkpoints.length - 1;
  const state = {
    operator: params.get("operator") ?? run.classified_operators[0],
    criterion: criterion_of(params),
    layer: params.get("layer"), neuron: params.get("neuron"),
    checkpoint: Math.min(last, Math.max(0, Number(params.get("checkpoint") ?? last) || 0)),
  };
  const curves = h("div", { className: "two" }), stepper = h("section", { className: "panel stepper" });
  root.append(h("p", { className: "lead" }, "The share of the final model's heuristics that earlier checkpoints have, and what these contribute there."),
    h("div", { className: "controls panel" }, criterion_buttons(state.criterion, (criterion) => { state.criterion = criterion; save(); draw_curves(); })),
    curves, stepper);
  const save = () => save_settings("training", { run: run.name, ...state });
  const training = await get(run_path(run.name, "training"));
  if (!is_current()) return;
  if (state.layer === null || state.neuron === null) {
    const page = await get(run_path(run.name, "neurons"), { operator: state.operator, criterion: "calibrated", classified: "classified", sort: "coverage", size: 1 });
    Object.assign(state, page.rows[0] ? { layer: String(page.rows[0].layer), neuron: String(page.rows[0].neuron) } : { layer: String(run.neuron_layers[0]), neuron: "0" });
  }
  if (!is_current()) return;

  function series(rows, includes, dashed = false, suffix = "") {
    return run.classified_operators.map((operator) => ({
      name: SIGNS[operator] + suffix, colour: OPERATOR_COLOURS[operator], dashed,
      points: rows.filter((r) => r.operator === operator && includes(r)).map((r) => ({ x: training.checkpoints.indexOf(r.checkpoint), ...r })),
    }));
  }

  function draw_curves() {
    const { criterion } = state;
    const axes = { x_label: "checkpoint", names: training.checkpoints.map((name) => name.replace(/^step-?0*(?=\d)/, "")), y_range: [0, 1] };
    const panel = (chart) => h("section", { className: "panel" }, chart);
    curves.replaceChildren(
      panel(line_chart({ ...axes, title: "Accuracy", y_label: "accuracy", series: series(training.accuracy, () => true) })),
      panel(line_chart({ ...axes, title: `Share of the final (neuron, heuristic) pairs that are present (${criterion})`, y_label: "share", series: series(training.present, (r) => r.criterion === criterion) })),
      panel(line_chart({ ...axes, title: `Faithfulness with all heuristic neurons (solid) and with those shared with the final model (dashed), ${criterion}`, y_label: "faithfulness",
        series: [...series(training.faithfulness, (r) => r.neurons === criterion && r.measure === "faithfulness"), ...series(training.faithfulness, (r) => r.neurons === `${criterion}_mutual` && r.measure === "faithfulness", true, " shared")] })),
      panel(line_chart({ ...axes, title: `Accuracy with 25 associated neurons per layer ablated (solid), and with 25 random ones (dashed), ${criterion}`, y_label: "accuracy",
        series: [...series(training.knockout, (r) => r.criterion === criterion && r.ablated === "associated" && r.size === 25), ...series(training.knockout, (r) => r.criterion === criterion && r.ablated === "random" && r.size === 25, true, " random")] })));
  }

  const map_holder = h("div", { className: "map-holder" });
  const slider = h("input", { type: "range", min: 0, max: last, step: 1, value: String(state.checkpoint), ariaLabel: "Checkpoint", oninput: (event) => step(Number(event.target.value)) });
  const name = h("output", {});
  const field = (label, key) => h("label", { className: "control" }, h("span", {}, label), h("input", { type: "number", min: 0, value: state[key], onchange: (event) => { state[key] = event.target.value; load(); } }));

  function step(to) {
    state.checkpoint = Math.min(last, Math.max(0, to));
    slider.value = String(state.checkpoint);
    load();
  }

  async function load() {
    save();
    const checkpoint = training.checkpoints[state.checkpoint];
    name.textContent = checkpoint;
    const requested = JSON.stringify(state);
    const is_latest = () => is_current() && requested === JSON.stringify(state);
    const slow = setTimeout(() => { if (is_latest()) map_holder.replaceChildren(notice("Not a top neuron at this checkpoint; computing its activation map…")); }, 400);
    try {
      const bytes = await get_bytes(run_path(run.name, "neurons", state.layer, state.neuron, "activation_map"), { operator: state.operator, checkpoint: state.checkpoint === last ? null : checkpoint });
      if (is_latest()) draw_map(new Float32Array(bytes), checkpoint);
    } catch (error) {
      if (is_latest()) map_holder.replaceChildren(notice(error.message, "error"));
    } finally {
      clearTimeout(slow);
    }
  }

  function draw_map(values, checkpoint) {
    const size = run.max_operand + 1, { operator } = state;
    const legal = values.map((v, cell) => { const result = answer(Math.floor(cell / size), operator, cell % size); return result === null || result < 0 || result >= run.limit ? NaN : v; });
    const scale = colour_scale(legal, false);
    map_holder.replaceChildren(heatmap({
      size, label: `Activation of L${state.layer}N${state.neuron} at ${checkpoint}`, logarithmic: operator === "*",
      colour: (cell) => (Number.isNaN(legal[cell]) ? null : scale.colour(values[cell])),
      describe: (a, b) => `${a} ${SIGNS[operator]} ${b}: ${number(values[a * size + b])}`,
      legend: { ...scale, text: number },
    }).element);
  }

  stepper.append(h("h2", {}, "Activation map of one neuron at each checkpoint"),
    h("div", { className: "controls" },
      operator_buttons(run.classified_operators, state.operator, (operator) => { state.operator = operator; load(); }), field("Layer", "layer"), field("Neuron", "neuron")),
    h("div", { className: "steps" },
      h("button", { type: "button", onclick: () => step(state.checkpoint - 1) }, "← earlier"), slider, h("button", { type: "button", onclick: () => step(state.checkpoint + 1) }, "later →"), name),
    map_holder);
  draw_curves();
  await load();
}
