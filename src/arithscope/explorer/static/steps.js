// The answer steps of a layout: each is a run of its own, which asks for one token of the answer.

import { buttons } from "./dom.js";
import { current, go } from "./state.js";

/** Settings that mean something at one step only; they are left out of the address of another step. */
const OWN_SETTINGS = ["ablate", "ablate_heuristic", "head", "heuristic", "kind", "layer", "neuron", "offset", "selected",
  "selected_operator"];

/** Whether a run is that of a layout, whose steps have runs of their own. */
export function is_layout(run) {
  return run.layout?.run === run.name;
}

/** The run that views show for a layout: of the step with this name, or else of the first one that was studied. */
export function run_at_step(runs, layout, step_name) {
  const studied = layout.layout.steps.filter((step) => step.run);
  const step = studied.find((s) => s.name === step_name) ?? studied[0];
  return step && runs.find((r) => r.name === step.run);
}

/** The present settings, for the run of another step. */
export function settings_at(step, kept = []) {
  const values = {};
  for (const name of current().params.keys()) {
    if (!OWN_SETTINGS.includes(name) || kept.includes(name)) values[name] = current().params.getAll(name);
  }
  return { ...values, run: step.run };
}

/** Chooses the answer step, in the same view; null if answers are one token. */
export function step_buttons(run, kept) {
  if (!run.layout) return null;
  const choices = run.layout.steps.map((step) => [step.number, `${step.number} ${step.name}`, step.left_out]);
  const control = buttons("Answer step", run.step.number, choices, (number) => {
    go(current().view, settings_at(run.layout.steps.find((step) => step.number === number), kept));
  }, (number) => !run.layout.steps.find((step) => step.number === number).run);
  control.classList.add("step-buttons");
  return control;
}

/** The position at which the model writes the token that is asked for. */
export function final_position({ step }) {
  return step && step.number > 1 ? `position answer.${step.number - 1}` : "the last position";
}
