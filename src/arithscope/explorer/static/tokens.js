// A model's whole answer, token by token: a row with a link to each answer step.

import { get, run_path } from "./api.js";
import { SIGNS, h, number } from "./dom.js";
import { written_token } from "./grid.js";
import { current, link } from "./state.js";
import { settings_at } from "./steps.js";

/** The answer to a prompt, given the right tokens before each, and what the model writes by itself. */
export async function token_row(run, prompt) {
  const given = await get(run_path(run.layout.run, "answer"), { prompt });
  const tokens = run.layout.steps.map((step, i) => token(step, given.steps[i], run));
  const row = tokens.flatMap((one, i) => [i ? h("span", { className: "dot", ariaHidden: "true" }, "·") : "", one]);
  const is_right = given.steps.every((step) => step.number === step.right);
  return [
    h("nav", { className: "tokens", ariaLabel: "Answer, token by token" },
      h("span", { className: "equation" }, `${given.op1} ${SIGNS[given.operator]} ${given.op2} =`), row),
    h("p", { className: "small" },
      is_right ? "The whole answer is right" : `The whole answer is wrong, it should be ${given.answer}`,
      `; log-probability of ${given.answer}: ${number(given.log_p)}. `,
      `Each token is given the right ones before it; by itself the model writes ${shown_token(given.free)}. `,
      h("a", { href: link("answers", { run: run.name }) }, "All whole answers")),
  ];
}

/** A token as it is written; in quotes if it is not a number. */
export function shown_token(text) {
  return /^\d+$/.test(text.trim()) ? text.trim() : JSON.stringify(text);
}

function token(step, given, run) {
  const { right, probability } = given;
  const is_right = given.number === right;
  const contents = [
    h("strong", { className: is_right ? "good" : "bad" }, shown_token(given.token)),
    h("small", {}, step.name),
    h("small", {}, `P = ${number(probability)}`),
    h("small", {}, is_right ? "right" : `wrong, not ${written_token(step.asked, right)}`),
  ];
  if (!step.run) return h("span", { className: "token", title: step.left_out }, contents);
  const is_shown = step.run === run.name;
  const href = link(current().view, settings_at(step));
  return h("a", { className: "token", href, "aria-current": is_shown ? "step" : null }, contents);
}
