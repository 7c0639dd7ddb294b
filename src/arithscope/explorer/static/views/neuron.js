// One neuron: what makes it fire, what it writes, and which rules it matches.

import { get, get_bytes, run_path } from "../api.js";
import { line_chart } from "../charts.js";
import { scale_of } from "../colours.js";
import { SIGNS, answer, buttons, h, notice, number, percent } from "../dom.js";
import { heatmap, together } from "../heatmap.js";
import { link, note } from "../state.js";
import { sorted_table } from "../table.js";

const ZOOMS = [["", "whole"], ["100", "100 × 100"], ["30", "30 × 30"]];
const FEW = 15;

export async function show(root, params, { run, still }) {
  const state = {
    operator: params.get("operator") ?? run.classified_operators[0],
    layer: params.get("layer"), neuron: params.get("neuron"),
    heuristic: params.get("heuristic") ?? "", zoom: params.get("zoom") ?? "",
  };
  if (state.layer === null || state.neuron === null) throw new Error("No neuron was named; choose one from the table of neurons.");
  const remember = () => note("neuron", { run: run.name, ...state });
  const at = run_path(run.name, "neurons", state.layer, state.neuron);
  const found = await get(at, { operator: state.operator });
  if (!still()) return;
  root.append(
    h("p", { className: "trail" }, h("a", { href: link("neurons", { run: run.name, operator: state.operator, layer: state.layer }) }, "← neurons of this layer")),
    h("h1", {}, `${found.name}, operator ${SIGNS[found.operator]}`),
    h("p", { className: "lead" }, facts(found)),
    h("p", {}, found.top_for.length ? ["Also a top neuron for ", found.top_for.map((o, i) => [i ? ", " : "", h("a", { href: link("neuron", { run: run.name, operator: o, layer: state.layer, neuron: state.neuron }) }, SIGNS[o])])] : "A top neuron for no other operator.",
      run.checkpoints.length ? [" · ", h("a", { href: link("training", { run: run.name, operator: state.operator, layer: state.layer, neuron: state.neuron }) }, "follow it through training")] : ""));
  const maps_at = h("div", { className: "maps" }), details = h("div", { className: "two" });
  root.append(maps_at, details);
  if (!found.pattern) {
    maps_at.append(notice("It is not among the top neurons of its layer for this operator, so its pattern was not stored."));
    details.append(effects_table(found));
    return;
  }
  const size = run.max_operand + 1;
  const activation = new Float32Array(await get_bytes(`${at}/pattern`, { operator: state.operator }));
  if (!still()) return;
  const { maps, fields } = draw_maps(found, activation, size, run.limit);
  const zoom = buttons("Enlarge", state.zoom, ZOOMS, (value) => { state.zoom = value; remember(); set_zoom(); });
  const set_zoom = () => maps.forEach((m) => m.zoom(state.zoom ? [Math.floor(0.6 * size), Math.floor(0.3 * size), Number(state.zoom)] : null));
  maps_at.before(h("div", { className: "controls" }, zoom));
  maps_at.append(...fields);
  set_zoom();

  async function outline(heuristic) {
    const wanted = heuristic || state.heuristic;
    const mask = wanted ? new Uint8Array(await get_bytes(run_path(run.name, "heuristics", "prompts"), { operator: state.operator, heuristic: wanted })) : null;
    if (still() && wanted === (hovered || state.heuristic)) maps.forEach((m) => m.outline(mask));
  }
  let hovered = "";
  const hover = (heuristic) => { hovered = heuristic; outline(heuristic).catch(() => {}); };
  const pin = (heuristic, table) => {
    state.heuristic = state.heuristic === heuristic ? "" : heuristic;
    remember();
    for (const tr of table.querySelectorAll("tr[data-heuristic]")) tr.setAttribute("aria-selected", String(tr.dataset.heuristic === state.heuristic));
    outline(hovered).catch(() => {});
  };

  const heuristics = h("section", { className: "panel" });
  const draw_heuristics = (most) => {
    const any = found.heuristics.length > 0;
    const rows = any ? found.heuristics : found.best;
    const table = sorted_table({
      caption: any ? `${found.heuristics.length} matched heuristics, ${found.heuristics.filter((r) => r.calibrated).length} of them calibrated` : "No heuristic matches; the best of each kind",
      rows: rows.slice(0, most),
      row: (r) => ({
        "data-heuristic": r.heuristic, "aria-selected": String(r.heuristic === state.heuristic), className: r.calibrated ? "calibrated" : "",
        onmouseenter: () => hover(r.heuristic), onmouseleave: () => hover(""), onfocusin: () => hover(r.heuristic), onfocusout: () => hover(""),
      }),
      columns: [
        { title: "heuristic", cell: (r) => h("button", { type: "button", className: "rule", title: "Hover to outline its prompts, click to keep the outline", onclick: () => pin(r.heuristic, heuristics) }, r.heuristic) },
        { title: "calibrated", cell: (r) => (r.calibrated ? "yes" : "") },
        { title: "score", numeric: true, hint: "share of its prompts among as many foremost ones of the neuron", cell: (r) => number(r.score) },
        { title: "expected", numeric: true, hint: "score that the value vector alone brings; for operand heuristics chance", cell: (r) => number(r.expected) },
        { title: "FDR", numeric: true, hint: "false-discovery rate, against permuted activations", cell: (r) => number(r.fdr) },
        { title: "prompts", numeric: true, cell: (r) => r.size.toLocaleString("en") },
        { title: "sign", cell: (r) => (r.sign === -1 ? "−" : "+"), hint: "whether it fires with high or with low activations" },
      ],
    });
    heuristics.replaceChildren(h("h2", {}, "Heuristics"), h("p", { className: "hint" }, `Together they explain ${percent(found.coverage.raw)} of the pattern's variance, the calibrated ones ${percent(found.coverage.calibrated)}.`),
      table, rows.length > most ? h("button", { type: "button", onclick: () => draw_heuristics(rows.length) }, `Show all ${rows.length}`) : "");
  };
  draw_heuristics(state.heuristic && found.heuristics.findIndex((r) => r.heuristic === state.heuristic) >= FEW ? Infinity : FEW);
  const top = found.pattern.tokens;
  details.append(heuristics, h("div", { className: "stack" },
    h("section", { className: "panel" }, h("h2", {}, "What it writes"),
      h("p", {}, "Numbers it promotes most: ", h("strong", {}, top.join(" "))),
      line_chart({ title: "Logits of the numbers in its value vector", x_label: "number", y_label: "logit", series: [{ name: "logit", colour: "var(--accent)", points: found.pattern.logits.map((value, x) => ({ x, value })) }] })),
    effects_table(found)));
  if (state.heuristic) outline("").catch((error) => heuristics.append(notice(error.message, "error")));
}

function facts(found) {
  const p = found.pattern;
  if (!p) return "";
  return `Rank ${p.rank} of its layer. Of its pattern's variance op1 tells ${percent(p.op1)}, op2 ${percent(p.op2)}, the result ${percent(p.result)}; correlation with its value vector's logit of the answer ${number(p.alignment)}: ${p.direct ? "direct" : "indirect"}.`;
}

function effects_table(found) {
  return h("section", { className: "panel" }, h("h2", {}, "Effect at the last position"), sorted_table({
    caption: "Patched with the activation on counterfactual prompts; mean with 95 % interval",
    rows: found.effects,
    columns: [
      { title: "measure", cell: (r) => r.measure.replace("_", " ") },
      { title: "mean", numeric: true, cell: (r) => `${number(r.value)} [${number(r.low)}, ${number(r.high)}]` },
      { title: "median", numeric: true, cell: (r) => number(r.median) },
      { title: "rank", numeric: true, cell: (r) => `${r.rank} of ${r.of}` },
    ],
  }));
}

/** Activation, logit of the answer, and their product, over the square. */
function draw_maps(found, activation, size, limit) {
  const { operator } = found;
  const { logits } = found.pattern;
  const on_answer = new Float32Array(size * size).fill(NaN), product = new Float32Array(size * size).fill(NaN), on_legal = new Float32Array(size * size).fill(NaN);
  for (let cell = 0; cell < size * size; cell++) {
    const right = answer(Math.floor(cell / size), operator, cell % size);
    if (right === null || right < 0 || right >= limit) continue;
    on_answer[cell] = logits[right];
    on_legal[cell] = activation[cell];
    product[cell] = activation[cell] * logits[right];
  }
  const wanted = [
    ["Activation", activation, on_legal, false, "what makes it fire"],
    ["Logit of the answer", on_answer, on_answer, true, "what its value vector writes"],
    ["Product", product, product, true, "what it adds to the answer"],
  ];
  const maps = wanted.map(([name, values, scaled, centred]) => {
    const scale = scale_of(scaled, centred);
    return heatmap({
      size, label: `${name} of ${found.name} for each pair of operands`, logarithmic: operator === "*",
      colour: (cell) => (Number.isNaN(values[cell]) ? null : faded(scale.colour(values[cell]), Number.isNaN(on_answer[cell]))),
      describe: (a, b) => {
        const right = answer(a, operator, b), v = values[a * size + b];
        return `${a} ${SIGNS[operator]} ${b}${right === null ? "" : ` = ${right}`}: ${Number.isNaN(v) ? "no legal prompt" : number(v)}`;
      },
      legend: { ...scale, text: number },
    });
  });
  together(maps);
  const fields = wanted.map(([name, , , , hint], i) => h("section", { className: "panel map" }, h("h2", {}, name), h("p", { className: "hint" }, hint), maps[i].element));
  return { maps, fields };
}

/** Prompts that are not legal play no part in a classification, so they are pale. */
function faded(colour, pale) {
  return pale ? colour.map((v) => Math.round(0.3 * v + 0.7 * 235)) : colour;
}
