// The table of matched heuristics: neurons per layer, and accuracy with these neurons ablated.

import { get, get_bytes, run_path } from "../api.js";
import { matrix, share_bar } from "../charts.js";
import { page_colour, viridis } from "../colours.js";
import {
  SIGNS, buttons, choice, count, criterion_buttons, h, interval, notice, number, operator_buttons,
} from "../dom.js";
import { grid_of } from "../grid.js";
import { heatmap } from "../heatmap.js";
import { criterion_of, link, save_settings, settings } from "../state.js";
import { step_buttons } from "../steps.js";
import { no_classification, pager, sorted_table } from "../table.js";

const PAGE_SIZE = 50;
const DEFAULTS = {
  operator: "", kind: "", search: "", tested: "", sort: "neurons", descending: "true", offset: "0",
  selected: "", selected_operator: "",
};
const LEAD = "Heuristics that top neurons match, the number of neurons that match each, and accuracy with these neurons "
  + "ablated.";

export async function show(root, params, { run, is_current }) {
  const state = { ...settings(params, DEFAULTS), criterion: criterion_of(params) };
  if (!run.classified_operators.length) {
    root.append(h("h1", {}, "Heuristics"), step_buttons(run) ?? "", no_classification());
    return;
  }
  const results = h("div", { className: "results panel" });
  const detail = h("div");
  const kinds = h("section", { className: "panel" });
  const change = (values) => { Object.assign(state, { offset: "0" }, values); load(); };
  const search = h("input", {
    type: "search", value: state.search, placeholder: "op1 mod 2", ariaLabel: "Search in heuristics",
    oninput: (event) => change({ search: event.target.value }),
  });
  root.append(
    h("h1", {}, "Heuristics"),
    h("p", { className: "lead" }, LEAD, run.step ? ` The result is the ${run.token}.` : ""),
    h("div", { className: "controls panel" },
      step_buttons(run),
      operator_buttons(run.classified_operators, state.operator, (operator) => change({ operator }), true),
      choice("Kind", state.kind, [["", "any"], ...run.kinds.map((k) => [k, k])], (kind) => change({ kind })),
      h("label", { className: "control" }, h("span", {}, "Search"), search),
      buttons("Show", state.tested, [["", "all"], ["true", "knocked out"]], (tested) => change({ tested })),
      criterion_buttons(state.criterion, (criterion) => change({ criterion, selected: "", selected_operator: "" }))),
    detail, kinds, results);

  async function load() {
    save_settings("heuristics", { run: run.name, ...state, offset: state.offset === "0" ? "" : state.offset });
    const requested = JSON.stringify(state);
    const { selected, selected_operator, ...query } = state;
    try {
      const page = await get(run_path(run.name, "heuristics"), { ...query, size: PAGE_SIZE });
      if (!is_current() || requested !== JSON.stringify(state)) return;
      draw_kinds(page.kinds);
      draw(page);
      await draw_detail(selected, selected_operator);
    } catch (error) {
      if (is_current()) results.replaceChildren(notice(error.message, "error"));
    }
  }

  function draw_kinds(rows) {
    if (!rows.length) { kinds.replaceChildren(notice("No heuristic matches.")); return; }
    const layers = run.neuron_layers;
    const matches = (i, j) => rows[i].by_layer[layers[j]] ?? 0;
    const largest = Math.max(1, ...rows.flatMap((r) => Object.values(r.by_layer)));
    kinds.replaceChildren(matrix({
      title: "Matches by kind and layer",
      rows: rows.map((r) => r.kind), columns: layers.map((l) => `L${l}`),
      value: (i, j) => matches(i, j) / largest, colour: (v) => viridis(Math.sqrt(v)),
      label: (i, j) => String(matches(i, j) || ""),
      text: (i, j) => `${rows[i].kind}, layer ${layers[j]}: ${matches(i, j)} matches`,
      is_selected: (i) => state.kind === rows[i].kind,
      pick: (i) => change({ kind: state.kind === rows[i].kind ? "" : rows[i].kind }),
    }));
  }

  function draw({ rows, total }) {
    const select = (r) => {
      state.selected = r.heuristic;
      state.selected_operator = r.operator;
      load();
      detail.scrollIntoView({ block: "nearest" });
    };
    const is_selected = (r) => r.heuristic === state.selected && r.operator === state.selected_operator;
    const accuracy = (r, group) => {
      if (r[group] === null || r[group] === undefined) return h("span", { className: "faint" }, "–");
      return [share_bar(r[group], group === "associated" ? "bad" : ""), ` ${number(r[group])}`];
    };
    const with_select = (r) => h("button", { type: "button", className: "heuristic", onclick: () => select(r) }, r.heuristic);
    const by_layer = (r) => Object.entries(r.by_layer).map(([l, n]) => `L${l}: ${n}`).join("  ");
    results.replaceChildren(
      sorted_table({
        caption: `${total.toLocaleString("en")} heuristics, ${state.criterion} matches; `
          + "accuracy with their neurons ablated (1 before ablation)",
        rows, sort: state.sort, descending: state.descending === "true",
        onsort: (sort, descending) => change({ sort, descending: String(descending) }),
        row_attributes: (r) => ({ "aria-selected": String(is_selected(r)) }),
        columns: [
          { title: "heuristic", sort: "heuristic", cell: with_select },
          { title: "operator", cell: (r) => SIGNS[r.operator] },
          { title: "kind", cell: (r) => r.kind },
          { title: "prompts", sort: "size", numeric: true, cell: (r) => r.size.toLocaleString("en") },
          { title: "neurons", sort: "neurons", numeric: true, cell: (r) => h("a", { href: neurons_link(r) }, r.neurons) },
          { title: "by layer", cell: by_layer },
          {
            title: "accuracy, associated", sort: "associated", numeric: true,
            hint: "on prompts that the heuristic holds for", cell: (r) => accuracy(r, "associated"),
          },
          {
            title: "accuracy, not associated", sort: "not_associated", numeric: true,
            hint: "on prompts that the heuristic does not hold for", cell: (r) => accuracy(r, "not_associated"),
          },
          {
            title: "difference", sort: "difference", numeric: true,
            hint: "accuracy on prompts that are not associated minus accuracy on those that are",
            cell: (r) => number(r.difference),
          },
        ],
      }),
      pager({
        offset: Number(state.offset), size: PAGE_SIZE, total, onpage: (to) => { state.offset = String(to); load(); },
      }));
  }

  function neurons_link(r) {
    return link("neurons", { run: run.name, operator: r.operator, heuristic: r.heuristic, criterion: state.criterion });
  }

  async function draw_detail(heuristic, operator) {
    if (!heuristic) { detail.replaceChildren(); return; }
    const [mask_bytes, page] = await Promise.all([
      get_bytes(run_path(run.name, "heuristics", "prompts"), { operator, heuristic }),
      get(run_path(run.name, "heuristics"), { operator, criterion: state.criterion, search: heuristic, size: 500 }),
    ]);
    if (!is_current() || heuristic !== state.selected) return;
    const row = page.rows.find((r) => r.heuristic === heuristic);
    if (!row) {
      detail.replaceChildren(notice(`No neuron matches ${heuristic} (${state.criterion}).`, "error"));
      return;
    }
    const mask = new Uint8Array(mask_bytes), grid = grid_of(run);
    const [inside, outside] = [page_colour("--accent"), page_colour("--faint")];
    const status = (cell) => {
      if (mask[cell]) return "holds";
      return grid.is_legal_cell(cell, operator) ? "does not hold" : grid.empty;
    };
    const map = heatmap({
      grid, label: `Prompts of ${heuristic}`, logarithmic: grid.is_logarithmic(operator),
      colour: (cell) => (mask[cell] ? inside : grid.is_legal_cell(cell, operator) ? outside : null),
      describe: (a, b, cell) => `${grid.describe(a, operator, b)}: ${status(cell)}`,
      empty: grid.empty,
    });
    const close = () => { state.selected = ""; state.selected_operator = ""; load(); };
    detail.replaceChildren(h("section", { className: "panel two detail" },
      h("div", {}, h("h2", {}, `${heuristic}, operator ${SIGNS[operator]}`), map.element),
      h("div", {},
        h("p", {}, `${row.kind}; holds for ${row.size.toLocaleString("en")} prompts; `,
          h("a", { href: neurons_link(row) }, count(row.neurons, "matching neuron")), ` (${state.criterion}).`),
        knockout_tables(row.knockout),
        h("button", { type: "button", onclick: close }, "Close"))));
  }

  await load();
}

const ABLATED = {
  own: "neurons that match it", unmatched: "as many that do not match it", random: "as many random top neurons",
};
const DIFFERENCES = {
  prompts: "not associated − associated prompts (matching neurons ablated)",
  unmatched: "other − matching neurons ablated (associated prompts)",
  random: "random − matching neurons ablated (associated prompts)",
};

function knockout_tables(knockout) {
  if (!knockout) return notice("Not tested: fewer than ten neurons match it, or there are too few prompts.");
  const row = (name, ...keys) => h("tr", {}, h("th", { scope: "row" }, name),
    keys.map((key) => h("td", {}, interval(knockout[key]))));
  const headers = ["ablated", "associated", "not associated"].map((text) => h("th", { scope: "col" }, text));
  return h("div", { className: "scroller" },
    h("table", { className: "rows" },
      h("caption", {}, "Knockout: accuracy with neurons zero-ablated (1 before ablation)"),
      h("thead", {}, h("tr", {}, headers)),
      h("tbody", {}, Object.entries(ABLATED).map(([key, name]) =>
        row(name, `${key}_associated`, `${key}_not_associated`)))),
    h("table", { className: "rows" },
      h("caption", {}, "Differences in accuracy, with 95 % intervals"),
      h("tbody", {}, Object.entries(DIFFERENCES).map(([key, name]) => row(name, `difference_${key}`)))));
}
