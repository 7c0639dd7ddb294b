// One prompt: the model's answer, the heuristics behind it, and the answer with some of their neurons ablated.

import { get, get_bytes, post, run_path } from "../api.js";
import { share_bar, waterfall } from "../charts.js";
import { page_colour } from "../colours.js";
import {
  SIGNS, answer, count, criterion_buttons, h, notice, number, operator_buttons, prompt_text, signed,
} from "../dom.js";
import { heatmap } from "../heatmap.js";
import { criterion_of, link, save_settings } from "../state.js";
import { sorted_table } from "../table.js";

const FIRST_ROWS = 12; // shown before "Show all" is clicked
const ALL = "all"; // in the address: all associated neurons
const NOT_A_NUMBER = -1, ILLEGAL = -2; // in predictions
const ATTRIBUTION_HINT = "Associated neurons by kind of heuristic: each counts once, for the best-scoring heuristic that "
  + "holds. Then everything else that writes to the residual stream at the last position.";

export async function show(root, params, { run, is_current }) {
  const state = {
    prompt: params.get("prompt") ?? default_prompt(run),
    criterion: criterion_of(params),
    neurons: new Set(params.getAll("ablate")), // ablated neurons
    heuristics: new Set(params.getAll("ablate_heuristic")), // heuristics whose neurons are ablated
    operator: null,
  };
  state.operator = operator_of(state.prompt, run.operators) ?? run.operators[0];
  const save = () => save_settings("prompt", {
    run: run.name, prompt: state.prompt, criterion: state.criterion,
    ablate: [...state.neurons], ablate_heuristic: [...state.heuristics],
  });
  const restore_all = () => { state.neurons.clear(); state.heuristics.clear(); };

  const field = h("input", {
    type: "text", name: "prompt", value: state.prompt, autocomplete: "off", spellcheck: false, ariaLabel: "Prompt",
  });
  const map_holder = h("div", { className: "map-holder" });
  const result = h("div", { className: "result" });
  const onsubmit = (event) => { event.preventDefault(); choose(field.value); };
  const form = h("form", { className: "prompt-form", onsubmit },
    h("label", {}, "Prompt", field), h("button", { type: "submit", className: "primary" }, "Explain"));
  const controls = h("div", { className: "controls" });
  root.append(h("h1", {}, "How does the model get its answer?"),
    h("div", { className: "two" },
      h("section", { className: "panel picker" }, form, controls, map_holder),
      result));

  function draw_controls() {
    const set_criterion = (criterion) => { state.criterion = criterion; restore_all(); save(); explain(); };
    controls.replaceChildren(
      operator_buttons(run.operators, state.operator, (operator) => { state.operator = operator; draw_map(); }),
      criterion_buttons(state.criterion, set_criterion));
  }

  async function draw_map() {
    const { operator } = state;
    const size = run.max_operand + 1;
    map_holder.replaceChildren(notice("Loading the model's predictions…"));
    const bytes = await get_bytes(run_path(run.name, "predictions"), { operator });
    if (!is_current() || operator !== state.operator) return;
    const predicted = new Int32Array(bytes, 0, size * size);
    const p_answer = new Float32Array(bytes, 4 * size * size, size * size);
    const [correct_colour, incorrect_colour] = [page_colour("--correct"), page_colour("--incorrect")];
    const is_correct = (cell) => predicted[cell] === answer(Math.floor(cell / size), operator, cell % size);
    let legal = 0, correct = 0;
    for (let cell = 0; cell < size * size; cell++) {
      if (predicted[cell] !== ILLEGAL) { legal += 1; correct += is_correct(cell); }
    }
    const map = heatmap({
      size,
      label: `Prompts with ${SIGNS[operator]}, correct or incorrect`,
      logarithmic: operator === "*",
      colour: (cell) => (predicted[cell] === ILLEGAL ? null : is_correct(cell) ? correct_colour : incorrect_colour),
      describe: (a, b) => {
        const cell = a * size + b;
        const text = `${a} ${SIGNS[operator]} ${b}`;
        if (predicted[cell] === ILLEGAL) return `${text}: not a legal prompt`;
        const shown = predicted[cell] === NOT_A_NUMBER ? "not a number" : predicted[cell];
        const verdict = is_correct(cell) ? "correct" : `incorrect, the answer is ${answer(a, operator, b)}`;
        return `${text} = ${shown} (${verdict}), P(answer) = ${number(p_answer[cell])}`;
      },
      pick: (a, b) => choose(prompt_text(a, operator, b)),
    });
    const parts = operands(state.prompt);
    if (parts && parts[1] === operator) map.select([parts[0], parts[2]]);
    const key = {
      correct: `correct (${correct.toLocaleString("en")})`,
      incorrect: `incorrect (${(legal - correct).toLocaleString("en")})`,
      empty: "not legal",
    };
    map_holder.replaceChildren(map.element, h("p", { className: "key-line" },
      Object.entries(key).map(([name, text]) => h("span", {}, h("span", { className: `swatch ${name}` }), text))));
  }

  function choose(text) {
    state.prompt = text.trim();
    field.value = state.prompt;
    restore_all();
    state.operator = operator_of(state.prompt, run.operators) ?? state.operator;
    save();
    draw_controls();
    draw_map();
    explain();
  }

  async function explain() {
    const { prompt, criterion } = state;
    result.replaceChildren(notice("Running the model…"));
    try {
      const explanation = await get(run_path(run.name, "explanation"), { prompt, criterion });
      if (is_current() && prompt === state.prompt && criterion === state.criterion) draw_explanation(explanation);
    } catch (error) {
      if (is_current()) result.replaceChildren(notice(error.message, "error"));
    }
  }

  function draw_explanation(explanation) {
    const { op1, operator, op2, right, criterion } = explanation;
    const ablation = h("section", { className: "panel ablation", ariaLive: "polite" });
    const toggles = h("div", { className: "toggles" });
    const is_correct = explanation.answer.number === right;
    const { "associated neurons": _, ...others } = explanation.parts;
    const steps = [
      ...explanation.kinds.map((k) => ({ name: k.name, value: k.contribution, note: count(k.neurons, "neuron") })),
      ...Object.entries(others).map(([name, value]) => ({ name, value })),
    ];
    const correction = is_correct ? "" : `; the correct answer is ${right}, P = ${number(explanation.answer.p_answer)}`;
    result.replaceChildren(
      h("section", { className: "panel verdict" },
        h("p", { className: "equation" },
          `${op1} ${SIGNS[operator]} ${op2} = `,
          h("strong", { className: is_correct ? "good" : "bad" }, answer_text(explanation.answer)),
          h("span", { className: "small" }, ` with P = ${number(explanation.answer.probability)}${correction}`)),
        h("p", {}, `Heuristics that hold for this prompt: ${explanation.heuristics.length}, `,
          `with ${count(explanation.neurons.length, "associated neuron")} (${criterion} matches).`)),
      ablation,
      h("section", { className: "panel" },
        h("h2", {}, `Direct logit attribution for ${right}`),
        h("p", { className: "hint" }, ATTRIBUTION_HINT),
        waterfall({ steps, total: explanation.logit, total_name: `logit of ${right}` })),
      toggles);
    draw_toggles(explanation, toggles, () => { save(); ablate(explanation, ablation); tick_toggles(toggles); });
    ablate(explanation, ablation);
  }

  function draw_toggles(explanation, holder, changed) {
    const { operator, criterion, right } = explanation;
    const names = explanation.neurons.map(neuron_name);
    const texts = explanation.heuristics.map((r) => r.heuristic);
    const heuristics = h("section", { className: "panel" });
    const neurons = h("section", { className: "panel" });
    /** A checkbox that ablates or restores one member of a set. If all neurons are ablated, the other members stay ablated. */
    const toggle = (set, members, value, label) => {
      const onchange = (event) => {
        if (state.neurons.delete(ALL)) members.forEach((member) => set.add(member));
        if (event.target.checked) set.delete(value);
        else set.add(value);
        changed();
      };
      return h("input", { type: "checkbox", className: "toggle", ariaLabel: label, value, onchange });
    };
    const heuristic_link = (r) => link("heuristics", {
      run: run.name, operator, criterion, selected: r.heuristic, selected_operator: operator,
    });
    const neuron_link = (r) => link("neuron", {
      run: run.name, operator, layer: r.layer, neuron: r.neuron, heuristic: r.heuristic,
    });
    const ablate_all = () => { restore_all(); state.neurons.add(ALL); changed(); };
    const ablate_none = () => { restore_all(); changed(); };
    const tick = () => tick_toggles(holder);
    holder.replaceChildren(
      h("p", { className: "actions" },
        h("button", { type: "button", onclick: ablate_all }, "Ablate all associated neurons"),
        h("button", { type: "button", onclick: ablate_none }, "Restore all")),
      heuristics, neurons);
    expandable(heuristics, "Heuristics that hold", explanation.heuristics, (rows) => sorted_table({
      caption: "Heuristics that hold for this prompt; untick one to ablate its neurons",
      rows,
      columns: [
        { title: "on", cell: (r) => toggle(state.heuristics, texts, r.heuristic, `Neurons of ${r.heuristic}`) },
        { title: "heuristic", cell: (r) => h("a", { href: heuristic_link(r) }, r.heuristic) },
        { title: "neurons", numeric: true, cell: (r) => r.neurons },
        { title: "contribution", numeric: true, hint: `to the logit of ${right}`, cell: (r) => signed(r.contribution) },
      ],
    }), tick);
    expandable(neurons, "Associated neurons", explanation.neurons, (rows) => sorted_table({
      caption: "Neurons by their contribution to the logit of the correct answer; untick one to ablate it",
      rows,
      columns: [
        { title: "on", cell: (r) => toggle(state.neurons, names, neuron_name(r), `Neuron ${neuron_name(r)}`) },
        { title: "neuron", cell: (r) => h("a", { href: neuron_link(r) }, neuron_name(r)) },
        { title: "activation", numeric: true, cell: (r) => number(r.activation) },
        { title: "logit", numeric: true, hint: `of ${right}, in its value vector`, cell: (r) => number(r.value_logit) },
        {
          title: "contribution", numeric: true, hint: `activation × logit ÷ ${number(explanation.scale)}`,
          cell: (r) => signed(r.contribution),
        },
        { title: "heuristic", cell: (r) => r.heuristic },
      ],
    }), tick);
    tick();
  }

  function tick_toggles(holder) {
    for (const box of holder.querySelectorAll("input.toggle")) {
      box.checked = !state.neurons.has(ALL) && !state.neurons.has(box.value) && !state.heuristics.has(box.value);
    }
  }

  let latest = 0;
  async function ablate(explanation, panel) {
    const { op1, operator, op2, ablated } = explanation;
    const request = ++latest;
    const neurons = state.neurons.has(ALL) ? explanation.neurons.map((n) => [n.layer, n.neuron])
      : [...state.neurons].map(parse_neuron).filter(Boolean);
    if (!neurons.length && !state.heuristics.size) {
      const strong = (given) => h("strong", {}, with_probability(given));
      panel.replaceChildren(h("h2", {}, "Ablate neurons"), h("p", {},
        "Untick heuristics or neurons below to ablate them. ",
        `With all ${ablated.neurons} associated neurons ablated, the model answers `, strong(ablated.answer),
        ablated.control ? ["; with as many other top neurons of each layer ablated, ", strong(ablated.control), "."]
          : " (too few other top neurons for a control)."));
      return;
    }
    panel.setAttribute("aria-busy", "true");
    try {
      const body = { prompt: state.prompt, criterion: state.criterion, neurons, heuristics: [...state.heuristics] };
      const { before, after, ...reply } = await post(run_path(run.name, "ablate"), body);
      if (request !== latest || !is_current()) return;
      const className = after.number === reply.right ? "good" : "bad";
      const change = before.token === after.token ? " as before" : ` instead of ${before.number ?? before.token}`;
      panel.replaceChildren(
        h("h2", {}, `With ${count(reply.neurons, "neuron")} ablated`),
        h("p", { className: "equation" },
          `${op1} ${SIGNS[operator]} ${op2} = `,
          h("strong", { className, id: "new-answer" }, answer_text(after)),
          h("span", { className: "small" }, change)),
        h("div", { className: "candidates" },
          candidates("before", before, reply.right), candidates("after ablation", after, reply.right)));
    } catch (error) {
      if (request === latest && is_current()) panel.replaceChildren(notice(error.message, "error"));
    } finally {
      if (request === latest) panel.removeAttribute("aria-busy");
    }
  }

  draw_controls();
  await Promise.all([draw_map(), explain()]);
}

/** The most probable tokens with their probabilities. */
function candidates(title, given, right) {
  const rows = given.most_probable.map(([token, p]) =>
    h("tr", { className: token.trim() === String(right) ? "is-correct" : "" },
      h("th", { scope: "row" }, token), h("td", {}, share_bar(p)), h("td", { className: "figure" }, number(p))));
  return h("table", { className: "probabilities" }, h("caption", {}, title), h("tbody", {}, rows));
}

/** The first rows of a table, and a button that shows all of them. */
function expandable(section, title, rows, draw, drawn) {
  const show_all = () => { fill(rows.length); drawn(); };
  const fill = (n) => {
    section.replaceChildren(h("h2", {}, title), draw(rows.slice(0, n)),
      n < rows.length ? h("button", { type: "button", onclick: show_all }, `Show all ${rows.length}`) : "");
  };
  fill(FIRST_ROWS);
}

function answer_text(given) {
  return String(given.number ?? JSON.stringify(given.token));
}

function with_probability(given) {
  return `${answer_text(given)} (P = ${number(given.probability)})`;
}

function neuron_name({ layer, neuron }) {
  return `L${layer}N${neuron}`;
}

/** [layer, neuron] of a name, or null. */
function parse_neuron(name) {
  const match = /^L(\d{1,5})N(\d{1,9})$/.exec(name);
  return match ? [Number(match[1]), Number(match[2])] : null;
}

/** [op1, operator, op2] of a prompt, or null. */
function operands(text) {
  const match = /^\s*(\d+)\s*([+\-*/])\s*(\d+)\s*=?\s*$/.exec(text);
  return match ? [Number(match[1]), match[2], Number(match[3])] : null;
}

function operator_of(text, operators) {
  const parts = operands(text);
  return parts && operators.includes(parts[1]) ? parts[1] : null;
}

/** The paper's example if the run has it, or a similar prompt. */
function default_prompt(run) {
  if (run.operators.includes("-") && run.max_operand >= 226) return "226-68";
  const [a, b] = [Math.floor(0.75 * run.max_operand), Math.floor(0.25 * run.max_operand)];
  return prompt_text(a, run.operators.find((o) => o !== "*") ?? run.operators[0], Math.max(1, b));
}
