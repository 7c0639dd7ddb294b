// The frame around all views: the choice of run and view. Draws again whenever the address changes.

import { abort_all, get } from "./api.js";
import { h, notice } from "./dom.js";
import { current, go, link } from "./state.js";
import { is_layout, run_at_step } from "./steps.js";
import { show as answers } from "./views/answers.js";
import { show as circuit } from "./views/circuit.js";
import { show as compare } from "./views/compare.js";
import { show as heuristics } from "./views/heuristics.js";
import { show as neuron } from "./views/neuron.js";
import { show as neurons } from "./views/neurons.js";
import { show as prompt } from "./views/prompt.js";
import { show as training } from "./views/training.js";

const VIEWS = {
  prompt: { title: "Prompt", show: prompt, of_steps: true },
  answers: { title: "Answers", show: answers, of_layouts: true },
  neurons: { title: "Neurons", show: neurons, of_steps: true },
  neuron: { title: "Neuron", show: neuron, of_steps: true, parent: "neurons" },
  heuristics: { title: "Heuristics", show: heuristics, of_steps: true },
  circuit: { title: "Circuit", show: circuit, of_steps: true },
  training: { title: "Training", show: training, of_steps: true },
  compare: { title: "Compare", show: compare },
};

const main = document.getElementById("main");
const picker = document.getElementById("run");
let runs = [];
let shown = null; // the run that is shown
let latest = 0; // number of the latest drawing; earlier ones stop when they notice

/** The run that views show by its name in the address: for a layout, that of an answer step, if any was studied. */
function run_named(name) {
  const run = name ? runs.find((r) => r.name === name) : runs[0];
  return run && is_layout(run) ? run_at_step(runs, run, shown?.step?.name) ?? run : run;
}

async function show() {
  const { view, params } = current();
  const selected = VIEWS[view];
  const run = run_named(params.get("run"));
  const is_new_step = run && shown && run !== shown && run.layout?.run === shown.layout?.run;
  const drawing = ++latest;
  abort_all();
  shown = run ?? run_named("");
  draw_nav(view, shown);
  picker.value = shown.layout?.run ?? shown.name;
  const root = h("div", { className: `view ${view}` });
  main.replaceChildren(root);
  main.setAttribute("aria-busy", "true");
  try {
    if (!selected) throw new Error(`There is no view ${view}.`);
    if (!run) throw new Error(`There is no run ${params.get("run")} here.`);
    if (selected.of_layouts && !run.layout) throw new Error("In this run, every answer is one token.");
    if (is_layout(run) && selected.of_steps) throw new Error("No step of this layout's answers was studied.");
    document.title = `${selected.title} · ${run.name} · arithscope`;
    await selected.show(root, params, { run, runs, is_current: () => drawing === latest });
    if (is_new_step && drawing === latest) root.querySelector(".step-buttons [aria-pressed=true]")?.focus();
  } catch (error) {
    if (drawing === latest) root.append(notice(error.message, "error"));
  } finally {
    if (drawing === latest) main.removeAttribute("aria-busy");
  }
}

function draw_nav(view, run) {
  const nav = document.getElementById("nav");
  const listed = Object.entries(VIEWS).filter(([, entry]) => !entry.parent && (run.layout || !entry.of_layouts));
  nav.replaceChildren(...listed.map(([name, { title }]) => {
    const is_open = name === (VIEWS[view]?.parent ?? view);
    return h("a", { href: link(name, { run: run.name }), "aria-current": is_open ? "page" : null }, title);
  }));
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

picker.addEventListener("change", () => {
  const { view } = current();
  const run = run_named(picker.value);
  const open = VIEWS[view]?.parent ?? view;
  go(VIEWS[open]?.of_layouts && !run.layout ? "prompt" : open, { run: run.name });
});

try {
  ({ runs } = await get("runs"));
  const listed = runs.filter((r) => !r.layout || is_layout(r)); // not the steps
  picker.replaceChildren(...listed.map((r) => h("option", { value: r.name }, r.name)));
  addEventListener("hashchange", show);
  await show();
} catch (error) {
  main.replaceChildren(notice(error.message, "error"));
}
