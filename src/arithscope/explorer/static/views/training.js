// Development over training: curves over checkpoints, and one neuron's activation map at each.

import { get, get_bytes, run_path } from "../api.js";
import { line_chart } from "../charts.js";
import { colour_scale } from "../colours.js";
import { OPERATOR_COLOURS, SIGNS, criterion_buttons, h, notice, number, operator_buttons } from "../dom.js";
import { grid_of } from "../grid.js";
import { heatmap } from "../heatmap.js";
import { criterion_of, save_settings } from "../state.js";
import { step_buttons } from "../steps.js";

const KNOCKOUT_SIZE = 25; // neurons ablated per layer

export async function show(root, params, { run, is_current }) {
  root.append(h("h1", {}, "Training"));
  if (!run.checkpoints.length) {
    root.append(step_buttons(run) ?? "", notice("This run has no training checkpoints; run it with --checkpoints all."));
    return;
  }
  const last = run.checkpoints.length - 1;
  const state = {
    operator: params.get("operator") ?? run.classified_operators[0],
    criterion: criterion_of(params),
    layer: params.get("layer"),
    neuron: params.get("neuron"),
    checkpoint: Math.min(last, Math.max(0, Number(params.get("checkpoint") ?? last) || 0)),
  };
  const curves = h("div", { className: "two" });
  const stepper = h("section", { className: "panel stepper" });
  const set_criterion = (criterion) => { state.criterion = criterion; save(); draw_curves(); };
  root.append(
    h("p", { className: "lead" },
      "How much of the final model's bag of heuristics earlier checkpoints already have, and how much it contributes there."),
    h("div", { className: "controls panel" }, step_buttons(run), criterion_buttons(state.criterion, set_criterion)),
    curves, stepper);
  const save = () => save_settings("training", { run: run.name, ...state });
  const training = await get(run_path(run.name, "training"));
  if (!is_current()) return;
  if (state.layer === null || state.neuron === null) {
    const query = { criterion: "calibrated", classified: "classified", sort: "coverage", size: 1 };
    const page = await get(run_path(run.name, "neurons"), { operator: state.operator, ...query });
    const { layer, neuron } = page.rows[0] ?? { layer: run.neuron_layers[0], neuron: 0 };
    Object.assign(state, { layer: String(layer), neuron: String(neuron) });
  }
  if (!is_current()) return;

  /** A curve over checkpoints for each operator, of the rows that are included. */
  function series(rows, includes, dashed = false, suffix = "") {
    return run.classified_operators.map((operator) => ({
      name: SIGNS[operator] + suffix, colour: OPERATOR_COLOURS[operator], dashed,
      points: rows.filter((r) => r.operator === operator && includes(r))
        .map((r) => ({ x: training.checkpoints.indexOf(r.checkpoint), ...r })),
    }));
  }

  function draw_curves() {
    const { criterion } = state;
    const names = training.checkpoints.map((name) => name.replace(/^step-?0*(?=\d)/, ""));
    const panel = (title, y_label, lines) => h("section", { className: "panel" },
      line_chart({ title, x_label: "checkpoint", y_label, names, y_range: [0, 1], series: lines }));
    const faithfulness = (neurons) => (r) => r.neurons === neurons && r.measure === "faithfulness";
    const knockout = (ablated) => (r) => r.criterion === criterion && r.ablated === ablated && r.size === KNOCKOUT_SIZE;
    curves.replaceChildren(
      panel("Accuracy", "accuracy", series(training.accuracy, () => true)),
      panel(`Share of the final (neuron, heuristic) pairs that are present (${criterion})`, "share",
        series(training.present, (r) => r.criterion === criterion)),
      panel(
        `Faithfulness with all heuristic neurons (solid) and with those shared with the final model (dashed), ${criterion}`,
        "faithfulness", [
          ...series(training.faithfulness, faithfulness(criterion)),
          ...series(training.faithfulness, faithfulness(`${criterion}_mutual`), true, " shared"),
        ]),
      panel(
        `Accuracy with ${KNOCKOUT_SIZE} neurons per layer ablated: associated or of other heuristics (dashed), ${criterion}`,
        "accuracy", [
          ...series(training.knockout, knockout("associated")),
          ...series(training.knockout, knockout("other_heuristics"), true, " other"),
        ]));
  }

  const map_holder = h("div", { className: "map-holder" });
  const slider = h("input", {
    type: "range", min: 0, max: last, step: 1, value: String(state.checkpoint), ariaLabel: "Checkpoint",
    oninput: (event) => step(Number(event.target.value)),
  });
  const name = h("output", {});
  const field = (label, key) => h("label", { className: "control" }, h("span", {}, label), h("input", {
    type: "number", min: 0, value: state[key], onchange: (event) => { state[key] = event.target.value; load(); },
  }));

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
    const slow = setTimeout(() => {
      const text = "Not a top neuron at this checkpoint; computing its activation map…";
      if (is_latest()) map_holder.replaceChildren(notice(text));
    }, 400);
    try {
      const path = run_path(run.name, "neurons", state.layer, state.neuron, "activation_map");
      const query = { operator: state.operator, checkpoint: state.checkpoint === last ? null : checkpoint };
      const bytes = await get_bytes(path, query);
      if (is_latest()) draw_map(new Float32Array(bytes), checkpoint);
    } catch (error) {
      if (is_latest()) map_holder.replaceChildren(notice(error.message, "error"));
    } finally {
      clearTimeout(slow);
    }
  }

  function draw_map(values, checkpoint) {
    const grid = grid_of(run), { operator } = state;
    const legal = values.map((v, cell) => (grid.is_legal_cell(cell, operator) ? v : NaN));
    const scale = colour_scale(legal, false);
    map_holder.replaceChildren(heatmap({
      grid, label: `Activation of L${state.layer}N${state.neuron} at ${checkpoint}`,
      logarithmic: grid.is_logarithmic(operator), empty: grid.empty,
      colour: (cell) => (Number.isNaN(legal[cell]) ? null : scale.colour(values[cell])),
      describe: (a, b, cell) => `${grid.describe(a, operator, b)}: ${number(values[cell])}`,
      legend: { ...scale, text: number },
    }).element);
  }

  stepper.append(h("h2", {}, "Activation map of one neuron at each checkpoint"),
    h("div", { className: "controls" },
      operator_buttons(run.classified_operators, state.operator, (operator) => { state.operator = operator; load(); }),
      field("Layer", "layer"), field("Neuron", "neuron")),
    h("div", { className: "steps" },
      h("button", { type: "button", onclick: () => step(state.checkpoint - 1) }, "← earlier"),
      slider,
      h("button", { type: "button", onclick: () => step(state.checkpoint + 1) }, "later →"),
      name),
    map_holder);
  draw_curves();
  await load();
}
