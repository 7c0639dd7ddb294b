// Comparison of runs: their main curves, and all numbers of their summaries.

import { get } from "../api.js";
import { line_chart } from "../charts.js";
import { SIGNS, choice, h, interval, notice, operator_buttons } from "../dom.js";
import { save_settings } from "../state.js";

const COLOURS = ["var(--plus)", "var(--minus)", "var(--times)", "var(--divide)", "var(--operator)", "var(--ink)"];
const X_LABELS = { // by a part of the curve's name; the first that occurs in it counts
  "share of heads": "share of heads", depth: "depth (share of layers)", "share of neurons": "share of neurons",
  training: "share of training", neurons: "neurons per layer",
};

export async function show(root, params, { run, runs, is_current }) {
  root.append(h("h1", {}, "Compare"));
  if (runs.length < 2) {
    root.append(notice("Only one run is open; start the explorer with two or more run folders to compare them."));
    return;
  }
  const state = { operator: params.get("operator") ?? "mean", experiment: params.get("experiment") ?? "" };
  const comparison = await get("comparison");
  if (!is_current()) return;
  const experiments = [...new Set(comparison.table.map((r) => r.experiment))];
  const operators = ["+", "-", "*", "/"].filter((o) => comparison.table.some((r) => r.operator === o));
  const curves = h("div", { className: "two" });
  const table = h("section", { className: "panel" });
  const change = (values) => {
    Object.assign(state, values);
    save_settings("compare", { run: run.name, ...state });
    draw();
  };
  const choices = [["", "all experiments"], ...experiments.map((e) => [e, e.replace("_", " ")])];
  root.append(
    h("div", { className: "controls panel" },
      operator_buttons(["mean", ...operators], state.operator, (operator) => change({ operator })),
      choice("Experiment", state.experiment, choices, (experiment) => change({ experiment }))),
    curves, table);

  function draw() {
    const suffix = state.operator === "mean" ? ", mean over operators" : `, ${SIGNS[state.operator]}`;
    curves.replaceChildren(...Object.entries(comparison.curves).map(([name, rows]) => h("section", { className: "panel" },
      line_chart({
        title: name[0].toUpperCase() + name.slice(1) + suffix,
        x_label: Object.entries(X_LABELS).find(([key]) => name.includes(key))?.[1] ?? "",
        y_label: name.split(/ by | without | present /)[0],
        y_range: [0, 1],
        series: comparison.runs.map((run_name, i) => ({
          name: run_name, colour: COLOURS[i % COLOURS.length], dashed: i >= COLOURS.length,
          points: points(rows.filter((r) => r.run === run_name)),
        })),
      }))));
    draw_table();
  }

  /** A run's curve for the operator; the mean is taken where all operators have a value. */
  function points(rows) {
    const by_x = (a, b) => a.x - b.x;
    if (state.operator !== "mean") return rows.filter((r) => r.operator === state.operator).toSorted(by_x);
    const values_at = new Map();
    for (const r of rows) if (r.value !== null) values_at.set(r.x, [...(values_at.get(r.x) ?? []), r.value]);
    const operator_count = new Set(rows.map((r) => r.operator)).size;
    return [...values_at]
      .filter(([, values]) => values.length === operator_count)
      .map(([x, values]) => ({ x, value: values.reduce((a, b) => a + b) / operator_count }))
      .toSorted(by_x);
  }

  function draw_table() {
    const rows = comparison.table.filter((r) => r.operator === state.operator
      && (!state.experiment || r.experiment === state.experiment));
    const full_name = (r) => `${r.experiment} ${r.measure}`;
    const measures = [...new Set(rows.map(full_name))];
    const entry = (measure, run_name) => rows.find((r) => r.run === run_name && full_name(r) === measure);
    if (!rows.length) {
      table.replaceChildren(h("h2", {}, "Numbers"), notice("No numbers for this selection."));
      return;
    }
    const header = (text, className = "") => h("th", { scope: "col", className }, text);
    const body = measures.map((measure) => {
      const [experiment, name] = measure.split(" ");
      return h("tr", {},
        h("td", {}, experiment.replace("_", " ")),
        h("th", { scope: "row" }, name.replaceAll("_", " ")),
        comparison.runs.map((run_name) => h("td", { className: "numeric" }, interval(entry(measure, run_name)))));
    });
    table.replaceChildren(
      h("h2", {}, "Numbers"),
      h("div", { className: "scroller", tabIndex: 0, role: "region", ariaLabel: "Numbers" },
        h("table", { className: "rows" },
          h("caption", {}, "Means with 95 % intervals where available"),
          h("thead", {}, h("tr", {}, header("experiment"), header("measure"),
            comparison.runs.map((run_name) => header(run_name, "numeric")))),
          h("tbody", {}, body))));
  }

  draw();
}
