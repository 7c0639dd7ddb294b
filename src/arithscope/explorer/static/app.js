// The frame around all views: the choice of run and view. Draws again whenever the address changes.

import { abort_all, get } from "./api.js";
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
  neuron: { title: "Neuron", show: neuron, parent: "neurons" },
  heuristics: { title: "Heuristics", show: heuristics },
  circuit: { title: "Circuit", show: circuit },
  training: { title: "Training", show: training },
  compare: { title: "Compare", show: compare },
};

const main = document.getElementById("main");
const picker = document.getElementById("run");
let runs = [];
let latest = 0; // number of the latest drawing; earlier ones stop when they notice

async function show() {
  const { view, params } = current();
  const selected = VIEWS[view];
  const run = runs.find((r) => r.name === params.get("run")) ?? (params.get("run") ? null : runs[0]);
  const drawing = ++latest;
  abort_all();
  draw_nav(view, run ?? runs[0]);
  picker.value = (run ?? runs[0]).name;
  const root = h("div", { className: `view ${view}` });
  main.replaceChildren(root);
  main.setAttribute("aria-busy", "true");
  try {
    if (!selected) throw new Error(`There is no view ${view}.`);
    if (!run) throw new Error(`There is no run ${params.get("run")} here.`);
    document.title = `${selected.title} · ${run.name} · arithscope`;
    await selected.show(root, params, { run, runs, is_current: () => drawing === latest });
  } catch (error) {
    if (drawing === latest) root.append(notice(error.message, "error"));
  } finally {
    if (drawing === latest) main.removeAttribute("aria-busy");
  }
}

function draw_nav(view, run) {
  const nav = document.getElementById("nav");
  const listed = Object.entries(VIEWS).filter(([, entry]) => !entry.parent);
  nav.replaceChildren(...listed.map(([name, { title }]) => {
    const is_open = name === (VIEWS[view]?.parent ?? view);
    return h("a", { href: link(name, { run: run.name }), "aria-current": is_open ? "page" : null }, title);
  }));
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

picker.addEventListener("change", () => {
  const { view } = current();
  go(VIEWS[view]?.parent ?? view, { run: picker.value });
});

try {
  ({ runs } = await get("runs"));
  picker.replaceChildren(...runs.map((r) => h("option", { value: r.name }, r.name)));
  addEventListener("hashchange", show);
  await show();
} catch (error) {
  main.replaceChildren(notice(error.message, "error"));
}
