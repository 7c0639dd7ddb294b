// One prompt: the model's answer, the heuristics behind it, and the answer with some of their neurons ablated.

import { get, post, run_path } from "../api.js";
import { share_bar, waterfall } from "../charts.js";
import { SIGNS, count, criterion_buttons, h, notice, number, operator_buttons, prompt_text, signed } from "../dom.js";
import { answer, grid_of } from "../grid.js";
import { predictions_map } from "../predictions.js";
import { criterion_of, link, save_settings } from "../state.js";
import { final_position, step_buttons } from "../steps.js";
import { sorted_table } from "../table.js";
import { shown_token, token_row } from "../tokens.js";

const FIRST_ROWS = 12; // shown before "Show all" is clicked
const ALL = "all"; // in the address: all associated neurons
const ATTRIBUTION_HINT = "Associated neurons by kind of heuristic: each counts once, for the best-scoring heuristic that "
  + "holds. Then everything else that writes to the residual stream at ";

export async function show(root, params, { run, is_current }) {
  const grid = grid_of(run);
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
  const tokens = run.layout ? h("section", { className: "panel" }) : null;
  const result = h("div", { className: "result" });
  const onsubmit = (event) => { event.preventDefault(); choose(field.value); };
  const form = h("form", { className: "prompt-form", onsubmit },
    h("label", {}, "Prompt", field), h("button", { type: "submit", className: "primary" }, "Explain"));
  const controls = h("div", { className: "controls" });
  root.append(h("h1", {}, `How does the model get ${run.step ? `the ${run.token}` : "its answer"}?`),
    h("div", { className: "two" },
      h("section", { className: "panel picker" }, form, controls, map_holder),
      h("div", {}, tokens, result)));

  function draw_controls() {
    const set_criterion = (criterion) => { state.criterion = criterion; restore_all(); save(); explain(); };
    controls.replaceChildren(...[
      step_buttons(run),
      operator_buttons(run.operators, state.operator, (operator) => { state.operator = operator; draw_map(); }),
      criterion_buttons(state.criterion, set_criterion),
    ].filter(Boolean));
  }

  async function draw_map() {
    const { operator } = state;
    map_holder.replaceChildren(notice("Loading the model's predictions…"));
    const pick = (a, b) => choose(prompt_text(a, operator, b));
    const { map, element } = await predictions_map(run, operator, pick);
    if (!is_current() || operator !== state.operator) return;
    const parts = operands(state.prompt);
    const cell = parts && parts[1] === operator ? grid.cell(parts[0], parts[2]) : undefined;
    if (cell !== undefined) map.select(cell);
    map_holder.replaceChildren(...element);
  }

  async function draw_tokens() {
    if (!tokens) return;
    const { prompt } = state;
    tokens.hidden = true; // what is wrong with a prompt is said below
    const row = await token_row(run, prompt).catch(() => null);
    if (!row || !is_current() || prompt !== state.prompt) return;
    tokens.replaceChildren(...row);
    tokens.hidden = false;
  }

  function choose(text) {
    state.prompt = text.trim();
    field.value = state.prompt;
    restore_all();
    state.operator = operator_of(state.prompt, run.operators) ?? state.operator;
    save();
    draw_controls();
    draw_map();
    draw_tokens();
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
    const { right, criterion } = explanation;
    const ablation = h("section", { className: "panel ablation", ariaLive: "polite" });
    const toggles = h("div", { className: "toggles" });
    const is_correct = explanation.answer.number === right;
    const { "associated neurons": _, ...others } = explanation.parts;
    const steps = [
      ...explanation.kinds.map((k) => ({ name: k.name, value: k.contribution, note: count(k.neurons, "neuron") })),
      ...Object.entries(others).map(([name, value]) => ({ name, value })),
    ];
    const correct = `the correct ${run.token} is ${grid.written(right)}, P = ${number(explanation.answer.p_answer)}`;
    const correction = is_correct ? "" : `; ${correct}`;
    result.replaceChildren(
      h("section", { className: "panel verdict" },
        h("p", { className: "equation" },
          equation(explanation),
          h("strong", { className: is_correct ? "good" : "bad" }, answer_text(explanation.answer)),
          h("span", { className: "small" }, ` with P = ${number(explanation.answer.probability)}${correction}`)),
        h("p", {}, `Heuristics that hold for this prompt: ${explanation.heuristics.length}, `,
          `with ${count(explanation.neurons.length, "associated neuron")} (${criterion} matches).`)),
      ablation,
      h("section", { className: "panel" },
        h("h2", {}, `Direct logit attribution for ${grid.written(right)}`),
        h("p", { className: "hint" }, `${ATTRIBUTION_HINT}${final_position(run)}.`),
        waterfall({ steps, total: explanation.logit, total_name: `logit of ${grid.written(right)}` })),
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
      caption: `Neurons by their contribution to the logit of the correct ${run.token}; untick one to ablate it`,
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
    const { ablated } = explanation;
    const request = ++latest;
    const neurons = state.neurons.has(ALL) ? explanation.neurons.map((n) => [n.layer, n.neuron])
      : [...state.neurons].map(parse_neuron).filter(Boolean);
    if (!neurons.length && !state.heuristics.size) {
      const strong = (given) => h("strong", {}, with_probability(given));
      panel.replaceChildren(h("h2", {}, "Ablate neurons"), h("p", {},
        "Untick heuristics or neurons below to ablate them. ",
        `With all ${ablated.neurons} associated neurons ablated, `,
        run.step ? `the ${run.token} is ` : "the model answers ", strong(ablated.answer),
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
      const change = before.token === after.token ? " as before" : ` instead of ${answer_text(before)}`;
      panel.replaceChildren(
        h("h2", {}, `With ${count(reply.neurons, "neuron")} ablated`),
        h("p", { className: "equation" },
          equation(explanation),
          h("strong", { className, id: "new-answer" }, answer_text(after)),
          h("span", { className: "small" }, change)),
        h("div", { className: "candidates" },
          ...[["before", before], ["after ablation", after]].map(([title, given]) =>
            candidates(title, given, grid.written(reply.right)))));
    } catch (error) {
      if (request === latest && is_current()) panel.replaceChildren(notice(error.message, "error"));
    } finally {
      if (request === latest) panel.removeAttribute("aria-busy");
    }
  }

  /** A prompt with the equals sign, and the tokens of the right answer that are given. */
  function equation({ op1, operator, op2 }) {
    const before = grid.given(answer(op1, operator, op2));
    return [`${op1} ${SIGNS[operator]} ${op2} = `, before ? h("span", { className: "faint" }, before) : ""];
  }

  function answer_text(given) {
    return run.step ? shown_token(given.token) : String(given.number ?? JSON.stringify(given.token));
  }

  function with_probability(given) {
    return `${answer_text(given)} (P = ${number(given.probability)})`;
  }

  draw_controls();
  await Promise.all([draw_map(), draw_tokens(), explain()]);
}

/** The most probable tokens with their probabilities. */
function candidates(title, given, right) {
  const rows = given.most_probable.map(([token, p]) =>
    h("tr", { className: token.trim() === right ? "is-correct" : "" },
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
  const operator = run.operators.find((o) => o !== "*") ?? run.operators[0];
  const grid = grid_of(run);
  if (run.stratum.layout) {
    const legal = Array.from({ length: grid.cells }, (_, cell) => cell).filter((c) => grid.is_legal_cell(c, operator));
    const [a, b] = grid.operands(legal[Math.floor(0.6 * legal.length)]);
    return prompt_text(a, operator, b);
  }
  const largest = run.stratum.op1.at(-1);
  if (run.operators.includes("-") && largest >= 226) return "226-68";
  return prompt_text(Math.floor(0.75 * largest), operator, Math.max(1, Math.floor(0.25 * largest)));
}
