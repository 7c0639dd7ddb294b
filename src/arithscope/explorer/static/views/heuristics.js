// The rules: by kind and parameter, how many neurons of each layer match them, and what is lost without these.

import { get, get_bytes, run_path } from "../api.js";
import { matrix, share_bar } from "../charts.js";
import { page_colour, viridis } from "../colours.js";
import { SIGNS, answer, buttons, choice, criterion_buttons, h, interval, notice, number, operator_buttons } from "../dom.js";
import { heatmap } from "../heatmap.js";
import { criterion_of, link, note, settings } from "../state.js";
import { pager, sorted_table } from "../table.js";

const SIZE = 50;

export async function show(root, params, { run, still }) {
  const state = { ...settings(params, { operator: "", kind: "", search: "", tested: "", sort: "neurons", descending: "true", offset: "0", open: "", of: "" }), criterion: criterion_of(params) };
  if (!run.classified_operators.length) {
    root.append(h("h1", {}, "Heuristics"), notice("This run has no classified neurons; run it again with all stages.", "error"));
    return;
  }
  const results = h("div", { className: "results panel" }), detail = h("div"), kinds = h("section", { className: "panel" });
  const change = (values) => { Object.assign(state, { offset: "0" }, values); load(); };
  const search = h("input", { type: "search", value: state.search, placeholder: "op1 mod 2", ariaLabel: "Search in heuristics", oninput: (event) => change({ search: event.target.value }) });
  root.append(
    h("h1", {}, "Heuristics"),
    h("p", { className: "lead" }, "Rules that top neurons implement, how many neurons match each, and what is left of accuracy without these neurons."),
    h("div", { className: "controls panel" },
      operator_buttons(run.classified_operators, state.operator, (operator) => change({ operator }), true),
      choice("Kind", state.kind, [["", "any"], ...run.kinds.map((k) => [k, k])], (kind) => change({ kind })),
      h("label", { className: "control" }, h("span", {}, "Search"), search),
      buttons("Show", state.tested, [["", "all"], ["true", "knocked out"]], (tested) => change({ tested })),
      criterion_buttons(state.criterion, (criterion) => change({ criterion, open: "", of: "" }))),
    detail, kinds, results);

  async function load() {
    note("heuristics", { run: run.name, ...state, offset: state.offset === "0" ? "" : state.offset });
    const asked = JSON.stringify(state);
    const { open, of, ...wanted } = state;
    try {
      const page = await get(run_path(run.name, "heuristics"), { ...wanted, size: SIZE });
      if (!still() || asked !== JSON.stringify(state)) return;
      draw_kinds(page.kinds);
      draw(page);
      await draw_detail(open, of);
    } catch (error) {
      if (still()) results.replaceChildren(notice(error.message, "error"));
    }
  }

  function draw_kinds(rows) {
    const layers = run.neuron_layers;
    const most = Math.max(1, ...rows.flatMap((r) => Object.values(r.by_layer)));
    kinds.replaceChildren(rows.length ? matrix({
      title: "Matches by kind and layer",
      rows: rows.map((r) => r.kind), columns: layers.map((l) => `L${l}`),
      value: (i, j) => (rows[i].by_layer[layers[j]] ?? 0) / most, colour: (v) => viridis(Math.sqrt(v)),
      label: (i, j) => String(rows[i].by_layer[layers[j]] ?? ""),
      text: (i, j) => `${rows[i].kind}, layer ${layers[j]}: ${rows[i].by_layer[layers[j]] ?? 0} matches`,
      pick: (i) => change({ kind: state.kind === rows[i].kind ? "" : rows[i].kind }), chosen: (i) => state.kind === rows[i].kind,
    }) : notice("No heuristic fits."));
  }

  function draw({ rows, total }) {
    const offset = Number(state.offset);
    const left = (r, group) => (r[group] === null || r[group] === undefined ? h("span", { className: "faint" }, "–")
      : [share_bar(r[group], group === "associated" ? "bad" : ""), ` ${number(r[group])}`]);
    results.replaceChildren(
      sorted_table({
        caption: `${total.toLocaleString("en")} heuristics, ${state.criterion} matches; accuracy is what is left without their neurons, 1 before`,
        rows, sort: state.sort, descending: state.descending === "true",
        onsort: (sort, descending) => change({ sort, descending: String(descending) }),
        row: (r) => ({ "aria-selected": String(r.heuristic === state.open && r.operator === state.of) }),
        columns: [
          { title: "heuristic", sort: "heuristic", cell: (r) => h("button", { type: "button", className: "rule", onclick: () => { state.open = r.heuristic; state.of = r.operator; load(); detail.scrollIntoView({ block: "nearest" }); } }, r.heuristic) },
          { title: "for", cell: (r) => SIGNS[r.operator] },
          { title: "kind", cell: (r) => r.kind },
          { title: "prompts", sort: "size", numeric: true, cell: (r) => r.size.toLocaleString("en") },
          { title: "neurons", sort: "neurons", numeric: true, cell: (r) => h("a", { href: neurons_link(r) }, r.neurons) },
          { title: "by layer", cell: (r) => Object.entries(r.by_layer).map(([l, n]) => `L${l}: ${n}`).join("  ") },
          { title: "accuracy, associated", sort: "associated", numeric: true, hint: "on prompts that it holds for", cell: (r) => left(r, "associated") },
          { title: "accuracy, others", sort: "not_associated", numeric: true, hint: "on prompts that it does not hold for", cell: (r) => left(r, "not_associated") },
          { title: "difference", sort: "difference", numeric: true, hint: "others minus associated", cell: (r) => number(r.difference) },
        ],
      }),
      pager({ offset, size: SIZE, total, onpage: (to) => { state.offset = String(to); load(); } }));
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
    if (!still() || heuristic !== state.open) return;
    const row = page.rows.find((r) => r.heuristic === heuristic);
    if (!row) { detail.replaceChildren(notice(`No neuron matches ${heuristic} (${state.criterion}).`, "error")); return; }
    const mask = new Uint8Array(mask_bytes), size = run.max_operand + 1;
    const [inside, outside] = [page_colour("--accent"), page_colour("--faint")];
    const legal = (a, b) => { const r = answer(a, operator, b); return r !== null && r >= 0 && r < run.limit; };
    const map = heatmap({
      size, label: `Prompts of ${heuristic}`, logarithmic: operator === "*",
      colour: (cell) => (mask[cell] ? inside : legal(Math.floor(cell / size), cell % size) ? outside : null),
      describe: (a, b) => `${a} ${SIGNS[operator]} ${b}: ${mask[a * size + b] ? "holds" : legal(a, b) ? "does not hold" : "not legal"}`,
    });
    detail.replaceChildren(h("section", { className: "panel two detail" },
      h("div", {}, h("h2", {}, `${heuristic}, operator ${SIGNS[operator]}`), map.element),
      h("div", {},
        h("p", {}, `${row.kind}; holds for ${row.size.toLocaleString("en")} prompts; `, h("a", { href: neurons_link(row) }, `${row.neurons} neurons match it`), ` (${state.criterion}).`),
        knockout(row.knockout),
        h("button", { type: "button", onclick: () => { state.open = ""; state.of = ""; load(); } }, "Close"))));
  }

  await load();
}

const SILENCED = { own: "its own neurons", unmatched: "as many that do not match it", random: "as many random ones" };
const GAPS = { prompts: "others minus associated, own neurons", unmatched: "control minus own, associated: unmatched", random: "control minus own, associated: random" };

function knockout(found) {
  if (!found) return notice("It was not knocked out: fewer than ten neurons match it, or too few prompts.");
  return h("div", { className: "scroller" },
    h("table", { className: "rows" }, h("caption", {}, "Accuracy with neurons silenced (all prompts were right before)"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "silenced"), h("th", { scope: "col" }, "associated prompts"), h("th", { scope: "col" }, "other prompts"))),
      h("tbody", {}, Object.entries(SILENCED).map(([key, name]) => h("tr", {}, h("th", { scope: "row" }, name),
        h("td", {}, interval(found[`${key}_associated`])), h("td", {}, interval(found[`${key}_not_associated`])))))),
    h("table", { className: "rows" }, h("caption", {}, "Differences, with 95 % intervals"),
      h("tbody", {}, Object.entries(GAPS).map(([key, name]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, interval(found[`difference_${key}`])))))));
}
