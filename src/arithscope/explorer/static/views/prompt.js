// One prompt: the answer, the bag of heuristics behind it, and the answer without some of them.

import { get, get_bytes, post, run_path } from "../api.js";
import { share_bar, waterfall } from "../charts.js";
import { page_colour } from "../colours.js";
import { SIGNS, adds, answer, criterion_buttons, h, notice, number, operator_buttons, prompt_text } from "../dom.js";
import { heatmap } from "../heatmap.js";
import { criterion_of, link, note } from "../state.js";
import { sorted_table } from "../table.js";

const FEW = 12; // rows that are shown at first
const ALL = "all"; // stands in the address for all associated neurons

export async function show(root, params, { run, still }) {
  const state = {
    prompt: params.get("prompt") ?? default_prompt(run),
    criterion: criterion_of(params),
    off: new Set(params.getAll("off")),
    without: new Set(params.getAll("without")),
    operator: null,
  };
  state.operator = operator_of(state.prompt, run.operators) ?? run.operators[0];
  const remember = () => note("prompt", { run: run.name, prompt: state.prompt, criterion: state.criterion, off: [...state.off], without: [...state.without] });

  const field = h("input", { type: "text", name: "prompt", value: state.prompt, autocomplete: "off", spellcheck: false, ariaLabel: "Prompt" });
  const square = h("div", { className: "square" });
  const result = h("div", { className: "result" });
  const form = h("form", { className: "ask", onsubmit: (event) => { event.preventDefault(); choose(field.value); } },
    h("label", {}, "Prompt", field), h("button", { type: "submit", className: "primary" }, "Explain"));
  const controls = h("div", { className: "controls" });
  root.append(h("h1", {}, "What makes it answer so?"),
    h("div", { className: "two" },
      h("section", { className: "panel picker" }, form, controls, square),
      result));

  function draw_controls() {
    controls.replaceChildren(
      operator_buttons(run.operators, state.operator, (o) => { state.operator = o; draw_square(); }),
      criterion_buttons(state.criterion, (c) => { state.criterion = c; state.off.clear(); state.without.clear(); remember(); explain(); }));
  }

  async function draw_square() {
    const { operator } = state;
    const size = run.max_operand + 1;
    square.replaceChildren(notice("Reading what the model answers…"));
    const bytes = await get_bytes(run_path(run.name, "square"), { operator });
    if (!still() || operator !== state.operator) return;
    const answered = new Int32Array(bytes, 0, size * size);
    const p = new Float32Array(bytes, 4 * size * size, size * size);
    const [right, wrong] = [page_colour("--right"), page_colour("--wrong")];
    const is_right = (cell) => answered[cell] === answer(Math.floor(cell / size), operator, cell % size);
    let legal = 0, correct = 0;
    for (let cell = 0; cell < size * size; cell++) {
      if (answered[cell] !== -2) { legal += 1; correct += is_right(cell); }
    }
    const map = heatmap({
      size,
      label: `Prompts with ${SIGNS[operator]}, right or wrong`,
      logarithmic: operator === "*",
      colour: (cell) => (answered[cell] === -2 ? null : is_right(cell) ? right : wrong),
      describe: (a, b) => {
        const cell = a * size + b;
        const text = `${a} ${SIGNS[operator]} ${b}`;
        if (answered[cell] === -2) return `${text}: no legal prompt`;
        const given = answered[cell] === -1 ? "no number" : answered[cell];
        return `${text} = ${given} (${is_right(cell) ? "right" : `wrong, it is ${answer(a, operator, b)}`}), P(right) ${number(p[cell])}`;
      },
      pick: (a, b) => choose(prompt_text(a, operator, b)),
    });
    const parts = operands(state.prompt);
    if (parts && parts[1] === operator) map.fix([parts[0], parts[2]]);
    square.replaceChildren(map.element, h("p", { className: "key-line" },
      h("span", { className: "swatch right" }), `right (${correct.toLocaleString("en")})`,
      h("span", { className: "swatch wrong" }), `wrong (${(legal - correct).toLocaleString("en")})`,
      h("span", { className: "swatch nothing" }), "not legal"));
  }

  function choose(text) {
    state.prompt = text.trim();
    field.value = state.prompt;
    state.off.clear();
    state.without.clear();
    const operator = operator_of(state.prompt, run.operators);
    if (operator) state.operator = operator;
    remember();
    draw_controls();
    draw_square();
    explain();
  }

  async function explain() {
    const asked = `${state.prompt} ${state.criterion}`;
    result.replaceChildren(notice("Asking the model…"));
    try {
      const found = await get(run_path(run.name, "explanation"), { prompt: state.prompt, criterion: state.criterion });
      if (still() && asked === `${state.prompt} ${state.criterion}`) draw_explanation(found);
    } catch (error) {
      if (still()) result.replaceChildren(notice(error.message, "error"));
    }
  }

  function draw_explanation(e) {
    const live = h("section", { className: "panel live", ariaLive: "polite" });
    const toggles = h("div", { className: "toggles" });
    const right = e.answer.number === e.right;
    const said = e.answer.number ?? JSON.stringify(e.answer.token);
    const steps = [
      ...e.kinds.map((k) => ({ name: k.name, value: k.contribution, note: `${k.neurons} neurons` })),
      ...Object.entries(e.parts).filter(([name]) => name !== "associated neurons").map(([name, value]) => ({ name, value })),
    ];
    result.replaceChildren(
      h("section", { className: "panel verdict" },
        h("p", { className: "equation" }, `${e.op1} ${SIGNS[e.operator]} ${e.op2} = `, h("strong", { className: right ? "good" : "bad" }, String(said)),
          h("span", { className: "small" }, ` with P = ${number(e.answer.probability)}${right ? "" : `; right is ${e.right}, P = ${number(e.answer.p_answer)}`}`)),
        h("p", {}, `${e.heuristics.length} heuristics that hold for this prompt are matched by ${e.neurons.length} neurons (${e.criterion}).`)),
      live,
      h("section", { className: "panel" },
        h("h2", {}, `Where the logit of ${e.right} comes from`),
        h("p", { className: "hint" }, "Each neuron counts once, with its best heuristic that holds. Below, whatever else writes into the last position."),
        waterfall({ steps, total: e.logit, total_name: `logit of ${e.right}` })),
      toggles);
    draw_toggles(e, toggles, () => { remember(); silence(e, live); draw_toggles_state(toggles); });
    silence(e, live);
  }

  function draw_toggles(e, holder, changed) {
    const names = e.neurons.map((n) => neuron_id(n));
    const heuristics = h("section", { className: "panel" }), neurons = h("section", { className: "panel" });
    const set = (which, value, on) => { (on ? which.delete(value) : which.add(value)); changed(); };
    /** If all are off and one is switched on, the others are off one by one. */
    const spell_out = (which, values) => { if (state.off.delete(ALL)) values.forEach((v) => which.add(v)); };
    holder.replaceChildren(
      h("p", { className: "actions" },
        h("button", { type: "button", onclick: () => { state.off.clear(); state.without.clear(); state.off.add(ALL); changed(); } }, "Silence all associated neurons"),
        h("button", { type: "button", onclick: () => { state.off.clear(); state.without.clear(); changed(); } }, "Restore all")),
      heuristics, neurons);
    more(heuristics, "Heuristics that hold", e.heuristics, (rows) => sorted_table({
      caption: "Heuristics that hold for this prompt; untick one to silence its neurons",
      rows,
      columns: [
        { title: "on", cell: (r) => h("input", { type: "checkbox", className: "toggle", ariaLabel: `Neurons of ${r.heuristic}`, value: r.heuristic, onchange: (event) => { spell_out(state.without, e.heuristics.map((x) => x.heuristic)); set(state.without, r.heuristic, event.target.checked); } }) },
        { title: "heuristic", cell: (r) => h("a", { href: link("heuristics", { run: run.name, operator: e.operator, criterion: e.criterion, open: r.heuristic, of: e.operator }) }, r.heuristic) },
        { title: "neurons", numeric: true, cell: (r) => r.neurons },
        { title: "adds", numeric: true, cell: (r) => adds(r.contribution) },
      ],
    }), () => draw_toggles_state(holder));
    more(neurons, "Their neurons", e.neurons, (rows) => sorted_table({
      caption: "Neurons by what they add to the logit of the right answer; untick one to silence it",
      rows,
      columns: [
        { title: "on", cell: (r) => h("input", { type: "checkbox", className: "toggle", ariaLabel: `Neuron ${neuron_id(r)}`, value: neuron_id(r), onchange: (event) => { spell_out(state.off, names); set(state.off, neuron_id(r), event.target.checked); } }) },
        { title: "neuron", cell: (r) => h("a", { href: link("neuron", { run: run.name, operator: e.operator, layer: r.layer, neuron: r.neuron, heuristic: r.heuristic }) }, neuron_id(r)) },
        { title: "activation", numeric: true, cell: (r) => number(r.activation) },
        { title: "logit", numeric: true, hint: `of ${e.right} in its value vector`, cell: (r) => number(r.value_logit) },
        { title: "adds", numeric: true, hint: `activation × logit ÷ ${number(e.scale)}`, cell: (r) => adds(r.contribution) },
        { title: "heuristic", cell: (r) => r.heuristic },
      ],
    }), () => draw_toggles_state(holder));
    draw_toggles_state(holder);
  }

  function draw_toggles_state(holder) {
    for (const box of holder.querySelectorAll("input.toggle")) {
      box.checked = !state.off.has(ALL) && !state.off.has(box.value) && !state.without.has(box.value);
    }
  }

  let asked = 0;
  async function silence(e, live) {
    const mine = ++asked;
    const neurons = state.off.has(ALL) ? e.neurons.map((n) => [n.layer, n.neuron]) : [...state.off].map(place_of).filter(Boolean);
    if (!neurons.length && !state.without.size) {
      const control = e.ablated.control;
      live.replaceChildren(h("h2", {}, "Take some away"),
        h("p", {}, `Untick heuristics or neurons below: the model answers again without them. Without all ${e.ablated.neurons} associated neurons it says `,
          h("strong", {}, said(e.ablated.answer)), control ? [", without as many other top neurons of each layer ", h("strong", {}, said(control)), "."] : " (there are not as many other top neurons in each layer to compare with)."));
      return;
    }
    live.setAttribute("aria-busy", "true");
    try {
      const found = await post(run_path(run.name, "silence"), { prompt: state.prompt, criterion: state.criterion, neurons, heuristics: [...state.without] });
      if (mine !== asked || !still()) return;
      const changed = found.before.token !== found.after.token;
      live.replaceChildren(
        h("h2", {}, `Without ${found.neurons} neuron${found.neurons === 1 ? "" : "s"}`),
        h("p", { className: "equation" }, `${e.op1} ${SIGNS[e.operator]} ${e.op2} = `, h("strong", { className: found.after.number === found.right ? "good" : "bad", id: "new-answer" }, String(found.after.number ?? JSON.stringify(found.after.token))),
          h("span", { className: "small" }, changed ? ` instead of ${found.before.number ?? found.before.token}` : " as before")),
        h("div", { className: "candidates" }, candidates("with all neurons", found.before, found.right), candidates("without", found.after, found.right)));
    } catch (error) {
      if (mine === asked && still()) live.replaceChildren(notice(error.message, "error"));
    } finally {
      if (mine === asked) live.removeAttribute("aria-busy");
    }
  }

  draw_controls();
  await Promise.all([draw_square(), explain()]);
}

function candidates(title, found, right) {
  return h("table", { className: "probabilities" }, h("caption", {}, title), h("tbody", {}, found.most_probable.map(([token, p]) =>
    h("tr", { className: token.trim() === String(right) ? "is-right" : "" }, h("th", { scope: "row" }, token), h("td", {}, share_bar(p)), h("td", { className: "figure" }, number(p))))));
}

/** The first rows of a table, and a button for the rest. */
function more(section, title, rows, draw, drawn) {
  const fill = (n) => {
    section.replaceChildren(h("h2", {}, title), draw(rows.slice(0, n)),
      n < rows.length ? h("button", { type: "button", onclick: () => { fill(rows.length); drawn(); } }, `Show all ${rows.length}`) : "");
  };
  fill(FEW);
}

function said(found) {
  return `${found.number ?? JSON.stringify(found.token)} (P = ${number(found.probability)})`;
}

function neuron_id(n) {
  return `L${n.layer}N${n.neuron}`;
}

function place_of(text) {
  const found = /^L(\d{1,5})N(\d{1,9})$/.exec(text);
  return found ? [Number(found[1]), Number(found[2])] : null;
}

function operands(text) {
  const found = /^\s*(\d+)\s*([+\-*/])\s*(\d+)\s*=?\s*$/.exec(text);
  return found ? [Number(found[1]), found[2], Number(found[3])] : null;
}

function operator_of(text, operators) {
  const found = operands(text);
  return found && operators.includes(found[1]) ? found[1] : null;
}

/** The paper's example if it can be asked, or something like it. */
function default_prompt(run) {
  if (run.operators.includes("-") && run.max_operand >= 226) return "226-68";
  const [a, b] = [Math.floor(0.75 * run.max_operand), Math.floor(0.25 * run.max_operand)];
  return prompt_text(a, run.operators.find((o) => o !== "*") ?? run.operators[0], Math.max(1, b));
}
