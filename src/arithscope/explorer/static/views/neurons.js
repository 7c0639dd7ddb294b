// The table of top neurons.

import { get, run_path } from "../api.js";
import { SIGNS, buttons, choice, criterion_buttons, h, notice, number, operator_buttons, percent } from "../dom.js";
import { criterion_of, link, save_settings, settings } from "../state.js";
import { final_position, step_buttons } from "../steps.js";
import { no_classification, pager, sorted_table } from "../table.js";

const PAGE_SIZE = 50;
const DEFAULTS = {
  operator: "", layer: "", kind: "", heuristic: "", classified: "any", sort: "effect", descending: "true", offset: "0",
};
const CLASSIFIED = [["any", "all"], ["classified", "classified"], ["unclassified", "not classified"]];
const VARIABLES = ["op1", "op2", "result"];

export async function show(root, params, { run, is_current }) {
  const state = { ...settings(params, DEFAULTS), criterion: criterion_of(params) };
  if (!run.classified_operators.length) {
    root.append(h("h1", {}, "Neurons"), step_buttons(run) ?? "", no_classification());
    return;
  }
  const results = h("div", { className: "results panel" });
  const change = (values) => { Object.assign(state, { offset: "0" }, values); load(); };
  const heuristic_filter = h("p", { className: "filter-note" });
  const layers = [["", "all"], ...run.neuron_layers.map((l) => [String(l), String(l)])];
  const kinds = [["", "any"], ...run.kinds.map((k) => [k, k])];
  root.append(
    h("h1", {}, "Neurons"),
    h("p", { className: "lead" }, `The neurons with the largest effect at ${final_position(run)}, for each operator, `,
      `with the heuristic that each matches best.${run.step ? ` The result is the ${run.token}.` : ""}`),
    h("div", { className: "controls panel" },
      step_buttons(run),
      operator_buttons(run.classified_operators, state.operator, (operator) => change({ operator }), true),
      choice("Layer", state.layer, layers, (layer) => change({ layer })),
      choice("Kind of heuristic", state.kind, kinds, (kind) => change({ kind })),
      buttons("Show", state.classified, CLASSIFIED, (classified) => change({ classified })),
      criterion_buttons(state.criterion, (criterion) => change({ criterion })),
      heuristic_filter),
    results);

  async function load() {
    const classified = state.classified === "any" ? "" : state.classified;
    const offset = state.offset === "0" ? "" : state.offset;
    save_settings("neurons", { run: run.name, ...state, classified, offset });
    heuristic_filter.replaceChildren(...(state.heuristic ? [
      "Only neurons that match ", h("code", {}, state.heuristic), " ",
      h("button", { type: "button", onclick: () => change({ heuristic: "" }) }, "show all"),
    ] : []));
    results.setAttribute("aria-busy", "true");
    try {
      const requested = JSON.stringify(state);
      const page = await get(run_path(run.name, "neurons"), { ...state, size: PAGE_SIZE });
      if (!is_current() || requested !== JSON.stringify(state)) return;
      draw(page);
    } catch (error) {
      if (is_current()) results.replaceChildren(notice(error.message, "error"));
    } finally {
      results.removeAttribute("aria-busy");
    }
  }

  function draw({ rows, total }) {
    const href = (r) => link("neuron", { run: run.name, operator: r.operator, layer: r.layer, neuron: r.neuron });
    const onpage = (to) => { state.offset = String(to); load(); results.scrollIntoView({ block: "start" }); };
    results.replaceChildren(
      sorted_table({
        caption: `${total.toLocaleString("en")} neurons, ${state.criterion} matches`,
        rows,
        sort: state.sort,
        descending: state.descending === "true",
        onsort: (sort, descending) => change({ sort, descending: String(descending) }),
        columns: [
          { title: "neuron", sort: "neuron", cell: (r) => h("a", { href: href(r) }, r.name) },
          { title: "operator", cell: (r) => SIGNS[r.operator] },
          { title: "layer", sort: "layer", numeric: true, cell: (r) => r.layer },
          { title: "rank", sort: "rank", numeric: true, hint: "in its layer, by effect", cell: (r) => r.rank },
          {
            title: "effect", sort: "effect", numeric: true,
            hint: `mean effect of activation patching at ${final_position(run)}`, cell: (r) => number(r.effect),
          },
          { title: "heuristic", cell: (r) => r.heuristic ?? h("span", { className: "faint" }, "none") },
          { title: "score", sort: "score", numeric: true, cell: (r) => number(r.score) },
          {
            title: "matches", sort: "heuristics", numeric: true, hint: "number of heuristics it matches",
            cell: (r) => r.heuristics,
          },
          {
            title: "coverage", sort: "coverage", numeric: true,
            hint: "variance of its activation map explained by its matched heuristics together",
            cell: (r) => percent(r.coverage),
          },
          ...VARIABLES.map((name) => ({
            title: `variance: ${name}`, sort: `variance_explained_${name}`, numeric: true,
            hint: `variance of its activation map explained by ${name}`,
            cell: (r) => percent(r[`variance_explained_${name}`]),
          })),
          {
            title: "alignment", sort: "alignment", numeric: true,
            hint: `correlation of its activation with its value vector's logit of the ${run.token}`,
            cell: (r) => number(r.alignment),
          },
        ],
      }),
      pager({ offset: Number(state.offset), size: PAGE_SIZE, total, onpage }));
  }

  await load();
}
