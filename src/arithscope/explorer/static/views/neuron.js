// One neuron: its activation map, the logits of its value vector, and the heuristics it matches.

import { get, get_bytes, run_path } from "../api.js";
import { line_chart } from "../charts.js";
import { colour_scale } from "../colours.js";
import { SIGNS, buttons, h, interval, notice, number, percent } from "../dom.js";
import { grid_of } from "../grid.js";
import { heatmap, link_maps } from "../heatmap.js";
import { link, save_settings } from "../state.js";
import { final_position, step_buttons } from "../steps.js";
import { sorted_table } from "../table.js";

const ZOOMS = [["", "whole grid"], ["100", "100 × 100"], ["30", "30 × 30"]];
const FIRST_ROWS = 15; // shown before "Show all" is clicked

export async function show(root, params, { run, is_current }) {
  const state = {
    operator: params.get("operator") ?? run.classified_operators[0],
    layer: params.get("layer"),
    neuron: params.get("neuron"),
    heuristic: params.get("heuristic") ?? "",
    zoom: params.get("zoom") ?? "",
  };
  if (state.layer === null || state.neuron === null) {
    throw new Error("The link names no neuron; choose one in the table of neurons.");
  }
  const save = () => save_settings("neuron", { run: run.name, ...state });
  const steps = step_buttons(run, ["layer", "neuron"]);
  if (steps) root.append(steps);
  const path = run_path(run.name, "neurons", state.layer, state.neuron);
  const neuron = await get(path, { operator: state.operator });
  if (!is_current()) return;
  const { layer, neuron: index, operator } = state;
  const with_operator = (o, i) => [i ? ", " : "",
    h("a", { href: link("neuron", { run: run.name, operator: o, layer, neuron: index }) }, SIGNS[o])];
  root.prepend(
    h("p", { className: "trail" },
      h("a", { href: link("neurons", { run: run.name, operator, layer }) }, "← neurons of this layer")),
    h("h1", {}, `${neuron.name}, operator ${SIGNS[neuron.operator]}`));
  root.append(
    h("p", { className: "lead" }, map_facts(neuron.activation_map, run.token)),
    h("p", {},
      neuron.top_for.length ? ["Also a top neuron for ", neuron.top_for.map(with_operator)]
        : run.operators.length > 1 ? "Not a top neuron for any other operator." : "",
      run.checkpoints.length ? [" · ", h("a", {
        href: link("training", { run: run.name, operator, layer, neuron: index }),
      }, "follow it through training")] : ""));
  const maps_holder = h("div", { className: "maps" });
  const details = h("div", { className: "two" });
  root.append(maps_holder, details);
  if (!neuron.activation_map) {
    maps_holder.append(notice("Not a top neuron of its layer for this operator, so its activation map was not stored."));
    details.append(effects_table(neuron, run));
    return;
  }
  const grid = grid_of(run);
  const activation = new Float32Array(await get_bytes(`${path}/activation_map`, { operator: state.operator }));
  if (!is_current()) return;
  const { maps, panels } = draw_maps(neuron, activation, grid, run);
  const widths = ZOOMS.filter(([width]) => Number(width) < Math.max(...grid.sides.map((side) => side.length)));
  const zoom = buttons("Zoom", state.zoom, widths, (value) => { state.zoom = value; save(); set_zoom(); });
  const set_zoom = () => {
    const centre = [0.6, 0.3].map((share, axis) => Math.floor(share * grid.sides[axis].length));
    const part = state.zoom ? { centre, width: Number(state.zoom) } : null;
    maps.forEach((m) => m.zoom(part));
  };
  if (widths.length > 1) maps_holder.before(h("div", { className: "controls" }, zoom));
  maps_holder.append(...panels);
  set_zoom();

  /** Outline the prompts of a heuristic; without one, those of the pinned heuristic. */
  async function outline(heuristic) {
    const outlined = heuristic || state.heuristic;
    const prompts = run_path(run.name, "heuristics", "prompts");
    const mask = outlined ? new Uint8Array(await get_bytes(prompts, { operator, heuristic: outlined })) : null;
    if (is_current() && outlined === (hovered || state.heuristic)) maps.forEach((m) => m.outline(mask));
  }
  let hovered = "";
  const hover = (heuristic) => { hovered = heuristic; outline(heuristic).catch(() => {}); };
  const pin = (heuristic, table) => {
    state.heuristic = state.heuristic === heuristic ? "" : heuristic;
    save();
    for (const tr of table.querySelectorAll("tr[data-heuristic]")) {
      tr.setAttribute("aria-selected", String(tr.dataset.heuristic === state.heuristic));
    }
    outline(hovered).catch(() => {});
  };

  const heuristics = h("section", { className: "panel" });
  const draw_heuristics = (count) => {
    const has_matches = neuron.heuristics.length > 0;
    const rows = has_matches ? neuron.heuristics : neuron.best;
    const calibrated = rows.filter((r) => r.calibrated).length;
    const with_pin = (r) => h("button", {
      type: "button", className: "heuristic", title: "Hover to outline its prompts, click to keep the outline",
      onclick: () => pin(r.heuristic, heuristics),
    }, r.sign === -1 ? `${r.heuristic} (fires negatively)` : r.heuristic);
    const table = sorted_table({
      caption: has_matches ? `${rows.length} matched heuristics, ${calibrated} of them calibrated`
        : "No heuristic matches; the best of each kind",
      rows: rows.slice(0, count),
      row_attributes: (r) => ({
        "data-heuristic": r.heuristic, "aria-selected": String(r.heuristic === state.heuristic),
        className: r.calibrated ? "calibrated" : "",
        onmouseenter: () => hover(r.heuristic), onmouseleave: () => hover(""),
        onfocusin: () => hover(r.heuristic), onfocusout: () => hover(""),
      }),
      columns: [
        { title: "heuristic", cell: with_pin },
        { title: "calibrated", cell: (r) => (r.calibrated ? "yes" : "") },
        {
          title: "score", numeric: true, hint: "share of the heuristic's k prompts among the neuron's top-k prompts",
          cell: (r) => number(r.score),
        },
        {
          title: "expected", numeric: true,
          hint: "mean score under the permutation null: activations permuted, value vector kept",
          cell: (r) => number(r.expected),
        },
        {
          title: "FDR", numeric: true, hint: "false-discovery rate against the permutation null",
          cell: (r) => number(r.fdr),
        },
        { title: "prompts", numeric: true, cell: (r) => r.size.toLocaleString("en") },
        { title: "sign", cell: (r) => (r.sign === -1 ? "−" : "+"), hint: "− if its most negative activations match" },
      ],
    });
    const { coverage } = neuron;
    heuristics.replaceChildren(
      h("h2", {}, "Heuristics"),
      h("p", { className: "hint" }, "Variance of the activation map explained by all matches together: ",
        `${percent(coverage.raw)}; by calibrated matches: ${percent(coverage.calibrated)}.`),
      table,
      rows.length > count ? h("button", { type: "button", onclick: () => draw_heuristics(rows.length) },
        `Show all ${rows.length}`) : "");
  };
  const pinned = neuron.heuristics.findIndex((r) => r.heuristic === state.heuristic);
  draw_heuristics(pinned >= FIRST_ROWS ? Infinity : FIRST_ROWS);
  const { tokens, logits } = neuron.activation_map;
  const values = run.step ? `values of the ${run.token}` : "numbers";
  details.append(heuristics, h("div", { className: "stack" },
    h("section", { className: "panel" }, h("h2", {}, "Value vector"),
      h("p", {}, `Most promoted ${values}: `, h("strong", {}, tokens.join(" "))),
      line_chart({
        title: `Logits of all ${values} (logit lens)`, x_label: run.step ? run.token : "number", y_label: "logit",
        series: [{ name: "logit", colour: "var(--accent)", points: logits.map((value, x) => ({ x, value })) }],
      })),
    effects_table(neuron, run)));
  if (state.heuristic) outline("").catch((error) => heuristics.append(notice(error.message, "error")));
}

function map_facts(map, token) {
  if (!map) return "";
  const shares = ["op1", "op2", "result"].map((name) => `${name}: ${percent(map[`variance_explained_${name}`])}`);
  return `Rank ${map.rank} in its layer. Variance of the activation map explained by ${shares.join(", ")}. `
    + `Correlation with its value vector's logit of the ${token}: ${number(map.alignment)} `
    + `(${map.direct ? "direct" : "indirect"}).`;
}

function effects_table(neuron, run) {
  return h("section", { className: "panel" }, h("h2", {}, `Effect at ${final_position(run)}`), sorted_table({
    caption: "Activation patching from counterfactual prompts; mean with 95 % interval",
    rows: neuron.effects,
    columns: [
      { title: "measure", cell: (r) => r.measure.replace("_", " ") },
      { title: "mean", numeric: true, cell: interval },
      { title: "median", numeric: true, cell: (r) => number(r.median) },
      { title: "rank", numeric: true, cell: (r) => `${r.rank} of ${r.of}` },
    ],
  }));
}

/** Maps over the operand grid of the activation, the logit of the token that is asked for, and their product. */
function draw_maps(neuron, activation, grid, run) {
  const { operator } = neuron, { token } = run;
  const { logits } = neuron.activation_map;
  const [on_asked, product, on_legal] = Array.from({ length: 3 }, () => new Float32Array(grid.cells).fill(NaN));
  for (let cell = 0; cell < grid.cells; cell++) {
    if (!grid.is_legal_cell(cell, operator)) continue;
    const logit = logits[grid.asked(cell, operator)];
    on_asked[cell] = logit;
    on_legal[cell] = activation[cell];
    product[cell] = activation[cell] * logit;
  }
  const contents = [ // title, values, values that set the colour scale, whether it is diverging, hint
    ["Activation", activation, on_legal, false, `at ${final_position(run)}`],
    [`Logit of the ${token}`, on_asked, on_asked, true, "in its value vector"],
    ["Activation × logit", product, product, true, `its contribution to the ${token}`],
  ];
  const maps = contents.map(([name, values, scaled, diverging]) => {
    const scale = colour_scale(scaled, diverging);
    return heatmap({
      grid, label: `${name} of ${neuron.name} for each pair of operands`,
      logarithmic: grid.is_logarithmic(operator), empty: run.step ? grid.empty : null,
      colour: (cell) => {
        if (Number.isNaN(values[cell])) return null;
        return fade(scale.colour(values[cell]), !grid.is_legal_cell(cell, operator));
      },
      describe: (a, b, cell) => {
        const value = values[cell];
        const shown = Number.isNaN(value) && !grid.is_legal_cell(cell, operator) ? grid.empty : number(value);
        return `${grid.describe(a, operator, b)}: ${shown}`;
      },
      legend: { ...scale, text: number },
    });
  });
  link_maps(maps);
  const panels = contents.map(([name, , , , hint], i) => h("section", { className: "panel map" },
    h("h2", {}, name), h("p", { className: "hint" }, hint), maps[i].element));
  return { maps, panels };
}

/** Illegal prompts do not count in the classification, so they are drawn pale. */
function fade(colour, pale) {
  return pale ? colour.map((v) => Math.round(0.3 * v + 0.7 * 235)) : colour;
}
