// The frame around all views: which run, which view, and showing it again when the address changes.

import { get } from "./api.js";
import { h, notice } from "./dom.js";
import { current, go, link } from "./state.js";
import { show as circuit } from "./views/circuit.js";
import { show as compare } from "./views/compare.js";
import { show as heuristics } from "./views/heuristics.js";
import { show as neuron } from "./views/neuron.js";
import { show as neurons } from "./views/neurons.js";
import { show as prompt } from "./views/prompt.js";
import { show as training } from "./views/training.js";

const VIEWS = {
  prompt: { title: "Prompt", show: prompt },
  neurons: { title: "Neurons", show: neurons },
  neuron: { title: "Neuron", show: neuron, under: "neurons" },
  heuristics: { title: "Heuristics", show: heuristics },
  circuit: { title: "Circuit", show: circuit },
  training: { title: "Training", show: training },
  compare: { title: "Compare", show: compare },
};

const main = document.getElementById("main");
const picker = document.getElementById("run");
let runs = [];
let showing = 0;

async function show() {
  const { view, params } = current();
  const chosen = VIEWS[view];
  const run = runs.find((r) => r.name === params.get("run")) ?? (params.get("run") ? null : runs[0]);
  const mine = ++showing;
  draw_nav(view, run ?? runs[0]);
  picker.value = (run ?? runs[0]).name;
  const root = h("div", { className: `view ${view}` });
  main.replaceChildren(root);
  main.setAttribute("aria-busy", "true");
  try {
    if (!chosen) throw new Error(`There is no view ${view}.`);
    if (!run) throw new Error(`There is no run ${params.get("run")} here.`);
    document.title = `${chosen.title} · ${run.name} · arithscope`;
    await chosen.show(root, params, { run, runs, still: () => mine === showing });
  } catch (error) {
    if (mine === showing) root.append(notice(error.message, "error"));
  } finally {
    if (mine === showing) main.removeAttribute("aria-busy");
  }
}

function draw_nav(view, run) {
  const nav = document.getElementById("nav");
  const shown = Object.entries(VIEWS).filter(([, v]) => !v.under);
  nav.replaceChildren(...shown.map(([name, v]) => {
    const here = name === (VIEWS[view]?.under ?? view);
    return h("a", { href: link(name, { run: run.name }), "aria-current": here ? "page" : null }, v.title);
  }));
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

picker.addEventListener("change", () => {
  const { view } = current();
  go(VIEWS[view]?.under ?? view, { run: picker.value });
});

try {
  ({ runs } = await get("runs"));
  picker.replaceChildren(...runs.map((r) => h("option", { value: r.name }, r.name)));
  addEventListener("hashchange", show);
  await show();
} catch (error) {
  main.replaceChildren(notice(error.message, "error"));
}
