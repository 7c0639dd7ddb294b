// Whole answers of a layout: how many are right, at every step and altogether, and what the steps share.

import { get, run_path } from "../api.js";
import { SIGNS, count, h, interval, notice, number, operator_buttons, prompt_text } from "../dom.js";
import { predictions_map } from "../predictions.js";
import { go, save_settings } from "../state.js";
import { sorted_table } from "../table.js";

const LEAD = "A whole answer is right if the token of every step is. Each step is given the right tokens before it; in "
  + "free running, the model is given its own.";
const CARRIES_HINT = "The residual stream at one position is replaced by that of a prompt in which only this digit, or "
  + "this carry, differs. An answer follows if it becomes that prompt's token. The control replaces it by that of a prompt "
  + "with other lower digits, but the same carry.";

export async function show(root, params, { run, runs, is_current }) {
  const layout = runs.find((r) => r.name === run.layout.run);
  const state = { operator: params.get("operator") ?? layout.operators[0] };
  const results = await get(run_path(layout.name, "results"));
  if (!is_current()) return;
  const found = Object.fromEntries(results.map(({ stage, summary }) => [stage, summary]));
  const map_holder = h("div", { className: "map-holder" });
  const [overlap, carries] = [h("div"), h("div")];
  root.append(
    h("h1", {}, "Whole answers"),
    h("p", { className: "lead" }, tokens_of(layout), LEAD),
    h("div", { className: "two" },
      h("section", { className: "panel" }, h("div", { className: "controls" },
        operator_buttons(layout.operators, state.operator, (operator) => { state.operator = operator; draw_map(); })),
      map_holder),
      h("div", {}, h("section", { className: "panel" }, accuracy_table(layout, found.whole_answers)), overlap, carries)));

  async function draw_map() {
    const { operator } = state;
    save_settings("answers", { run: run.name, operator });
    map_holder.replaceChildren(notice("Loading the model's answers…"));
    const pick = (a, b) => go("prompt", { run: run.name, prompt: prompt_text(a, operator, b) });
    const { element } = await predictions_map(layout, operator, pick);
    if (is_current() && operator === state.operator) map_holder.replaceChildren(...element);
  }

  async function draw_overlap() {
    if (!found.step_overlap) return;
    const { rows } = await get(run_path(layout.name, "results", "step_overlap", "table"), { size: 500 });
    if (is_current()) overlap.replaceChildren(overlap_table(layout, rows));
  }

  async function draw_carries() {
    if (!found.carries) return;
    const rows = await get(run_path(layout.name, "carries"));
    if (is_current() && rows.length) carries.replaceChildren(carries_table(layout, rows));
  }

  await Promise.all([draw_map(), draw_overlap(), draw_carries()]);
}

function tokens_of({ stratum }) {
  const [op1, op2, whole] = stratum.layout.split("-").map((n) => count(Number(n), "token"));
  return `op1 takes ${op1}, op2 ${op2} and the answer ${whole}. `;
}

function accuracy_table(layout, summary) {
  const operators = [...layout.operators, "mean"].filter((o) => summary[o]);
  const shown = operators.length === 2 ? operators.slice(0, 1) : operators; // the mean of one operator says nothing new
  const { steps } = layout.layout;
  const measures = [
    ["accuracy", "whole answer right"],
    ...steps.map(({ number: step, token, run, left_out }) => [`accuracy_${step}`, `${token} right`, run ? "" : left_out]),
    ["log_p", "log-probability of the right answer"],
    ["p_answer", "probability of the right answer"],
    ["agreement", "free running writes the tokens of the steps"],
    ["stops", "stops after the right answer"],
  ];
  return sorted_table({
    caption: "Shares and means over all prompts of the layout, with 95 % intervals",
    rows: measures,
    columns: [
      { title: "", cell: ([, name, note]) => [name, note ? h("small", { className: "faint note" }, note) : ""] },
      ...shown.map((operator) => ({
        title: SIGNS[operator] ?? operator, numeric: true, cell: ([measure]) => interval(summary[operator][measure]),
      })),
    ],
  });
}

/** The column of operators; none if there is only one. */
function operator_column({ operators }) {
  return operators.length > 1 ? [{ title: "operator", cell: (r) => SIGNS[r.operator] }] : [];
}

function overlap_table(layout, rows) {
  const token = (step) => layout.layout.steps.find((s) => s.number === step).token;
  return h("section", { className: "panel" }, h("h2", {}, "What the steps share"), sorted_table({
    caption: "Intersection over union (IoU) of their circuits' heads, and of their top neurons",
    rows,
    columns: [
      { title: "steps", cell: (r) => `${token(r.step)}, ${token(r.other)}` },
      ...operator_column(layout),
      { title: "components", cell: (r) => r.components },
      { title: "shared", numeric: true, hint: "by both, of those of either step", cell: (r) => sizes(r) },
      { title: "IoU", numeric: true, cell: (r) => number(r.iou) },
      { title: "by chance", numeric: true, hint: "IoU of random sets of these sizes", cell: (r) => number(r.expected) },
    ],
  }));
}

function sizes({ shared, size, other_size }) {
  return `${shared} of ${size} and ${other_size}`;
}

/** Where each digit and each carry is held, a row for each position and range of layers. */
function carries_table(layout, rows) {
  const held = ({ step, sources }) => {
    const { name, token } = layout.layout.steps.find((s) => s.number === step);
    return sources === "carry" ? `carry into ${name}` : token;
  };
  return h("section", { className: "panel" },
    h("h2", {}, "Where digits and carries are held"),
    h("p", { className: "hint" }, CARRIES_HINT),
    sorted_table({
      caption: "Positions and layers at which more than half of the answers follow",
      rows,
      columns: [
        { title: "held", cell: held },
        ...operator_column(layout),
        { title: "where", hint: "position, and after which layers", cell: (r) => `${r.position}, ${r.layers}` },
        { title: "follow", numeric: true, hint: "smallest share among these layers, with 95 % interval", cell: interval },
        {
          title: "control", numeric: true, hint: "largest share with other lower digits, but the same carry",
          cell: (r) => number(r.control),
        },
      ],
    }));
}
