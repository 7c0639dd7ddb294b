// How the bag of heuristics grows: curves over checkpoints, and one neuron's pattern at each.

import { get, get_bytes, run_path } from "../api.js";
import { line_chart } from "../charts.js";
import { scale_of } from "../colours.js";
import { OPERATOR_COLOURS, SIGNS, answer, criterion_buttons, h, notice, number, operator_buttons } from "../dom.js";
import { heatmap } from "../heatmap.js";
import { criterion_of, note } from "../state.js";

export async function show(root, params, { run, still }) {
  root.append(h("h1", {}, "Training"));
  if (!run.checkpoints.length) {
    root.append(notice("This run did not follow its subject through training; run it with --checkpoints all."));
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
  root.append(h("p", { className: "lead" }, "What earlier checkpoints have of the final model's rules, and what that does there."),
    h("div", { className: "controls panel" }, criterion_buttons(state.criterion, (criterion) => { state.criterion = criterion; remember(); draw_curves(); })),
    curves, stepper);
  const remember = () => note("training", { run: run.name, ...state });
  const found = await get(run_path(run.name, "training"));
  if (!still()) return;
  if (state.layer === null || state.neuron === null) {
    const page = await get(run_path(run.name, "neurons"), { operator: state.operator, criterion: "calibrated", classified: "classified", sort: "coverage", size: 1 });
    Object.assign(state, page.rows[0] ? { layer: String(page.rows[0].layer), neuron: String(page.rows[0].neuron) } : { layer: String(run.neuron_layers[0]), neuron: "0" });
  }
  if (!still()) return;

  function series(rows, pick, dashed = false, suffix = "") {
    return run.classified_operators.map((operator) => ({
      name: SIGNS[operator] + suffix, colour: OPERATOR_COLOURS[operator], dashed,
      points: rows.filter((r) => r.operator === operator && pick(r)).map((r) => ({ x: found.checkpoints.indexOf(r.checkpoint), ...r })),
    }));
  }

  function draw_curves() {
    const c = state.criterion;
    const axes = { x_label: "checkpoint", names: found.checkpoints.map((name) => name.replace(/^step-?0*(?=\d)/, "")), y_range: [0, 1] };
    const panel = (chart) => h("section", { className: "panel" }, chart);
    curves.replaceChildren(
      panel(line_chart({ ...axes, title: "Accuracy", y_label: "accuracy", series: series(found.accuracy, () => true) })),
      panel(line_chart({ ...axes, title: `Final pairs of neuron and heuristic that are there already (${c})`, y_label: "share", series: series(found.present, (r) => r.criterion === c) })),
      panel(line_chart({ ...axes, title: `Faithfulness with all heuristic neurons (solid) and with those shared with the final model (dashed), ${c}`, y_label: "faithfulness",
        series: [...series(found.faithfulness, (r) => r.neurons === c && r.measure === "faithfulness"), ...series(found.faithfulness, (r) => r.neurons === `${c}_mutual` && r.measure === "faithfulness", true, " shared")] })),
      panel(line_chart({ ...axes, title: `Accuracy without 25 associated neurons of each layer (solid), and without 25 random ones (dashed), ${c}`, y_label: "accuracy",
        series: [...series(found.knockout, (r) => r.criterion === c && r.ablated === "associated" && r.size === 25), ...series(found.knockout, (r) => r.criterion === c && r.ablated === "random" && r.size === 25, true, " random")] })));
  }

  const place = h("div", { className: "square" });
  const slider = h("input", { type: "range", min: 0, max: last, step: 1, value: String(state.checkpoint), ariaLabel: "Checkpoint", oninput: (event) => step(Number(event.target.value)) });
  const name = h("output", {});
  const field = (label, key) => h("label", { className: "control" }, h("span", {}, label), h("input", { type: "number", min: 0, value: state[key], onchange: (event) => { state[key] = event.target.value; load(); } }));

  function step(to) {
    state.checkpoint = Math.min(last, Math.max(0, to));
    slider.value = String(state.checkpoint);
    load();
  }

  async function load() {
    remember();
    const checkpoint = found.checkpoints[state.checkpoint];
    name.textContent = checkpoint;
    const asked = JSON.stringify(state);
    const waiting = setTimeout(() => { if (asked === JSON.stringify(state)) place.replaceChildren(notice("Not a top neuron at this checkpoint, so its pattern is being computed…")); }, 400);
    try {
      const bytes = await get_bytes(run_path(run.name, "neurons", state.layer, state.neuron, "pattern"), { operator: state.operator, checkpoint: state.checkpoint === last ? null : checkpoint });
      if (still() && asked === JSON.stringify(state)) draw_pattern(new Float32Array(bytes), checkpoint);
    } catch (error) {
      if (still() && asked === JSON.stringify(state)) place.replaceChildren(notice(error.message, "error"));
    } finally {
      clearTimeout(waiting);
    }
  }

  function draw_pattern(values, checkpoint) {
    const size = run.max_operand + 1, { operator } = state;
    const legal = values.map((v, cell) => { const r = answer(Math.floor(cell / size), operator, cell % size); return r === null || r < 0 || r >= run.limit ? NaN : v; });
    const scale = scale_of(legal, false);
    place.replaceChildren(heatmap({
      size, label: `Activation of L${state.layer}N${state.neuron} at ${checkpoint}`, logarithmic: operator === "*",
      colour: (cell) => (Number.isNaN(legal[cell]) ? null : scale.colour(values[cell])),
      describe: (a, b) => `${a} ${SIGNS[operator]} ${b}: ${number(values[a * size + b])}`,
      legend: { ...scale, text: number },
    }).element);
  }

  stepper.append(h("h2", {}, "One neuron, checkpoint by checkpoint"),
    h("div", { className: "controls" },
      operator_buttons(run.classified_operators, state.operator, (operator) => { state.operator = operator; load(); }), field("Layer", "layer"), field("Neuron", "neuron")),
    h("div", { className: "steps" },
      h("button", { type: "button", onclick: () => step(state.checkpoint - 1) }, "← earlier"), slider, h("button", { type: "button", onclick: () => step(state.checkpoint + 1) }, "later →"), name),
    place);
  draw_curves();
  await load();
}
