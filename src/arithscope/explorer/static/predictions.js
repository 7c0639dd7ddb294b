// The model's answers over the operand grid: which are correct, and how probable the correct ones are.

import { get_bytes, run_path } from "./api.js";
import { page_colour } from "./colours.js";
import { SIGNS, h, number } from "./dom.js";
import { grid_of } from "./grid.js";
import { heatmap } from "./heatmap.js";

const NOT_A_NUMBER = -1, ILLEGAL = -2; // in predictions

/** The map of an operator's prompts, and its key as an element. pick(op1, op2): called when a prompt is clicked. */
export async function predictions_map(run, operator, pick) {
  const grid = grid_of(run);
  const bytes = await get_bytes(run_path(run.name, "predictions"), { operator });
  const predicted = new Int32Array(bytes, 0, grid.cells);
  const p_answer = new Float32Array(bytes, 4 * grid.cells, grid.cells);
  const [correct_colour, incorrect_colour] = [page_colour("--correct"), page_colour("--incorrect")];
  const is_correct = (cell) => predicted[cell] === grid.asked(cell, operator);
  let legal = 0, correct = 0;
  for (let cell = 0; cell < grid.cells; cell++) {
    if (predicted[cell] !== ILLEGAL) { legal += 1; correct += is_correct(cell); }
  }
  const map = heatmap({
    grid, pick,
    label: `Prompts with ${SIGNS[operator]}, correct or incorrect`,
    logarithmic: grid.is_logarithmic(operator),
    colour: (cell) => (predicted[cell] === ILLEGAL ? null : is_correct(cell) ? correct_colour : incorrect_colour),
    describe: (a, b, cell) => {
      const text = `${a} ${SIGNS[operator]} ${b}`;
      if (predicted[cell] === ILLEGAL) return `${text}: ${grid.empty}`;
      const shown = predicted[cell] === NOT_A_NUMBER ? "not a number" : grid.written(predicted[cell]);
      const p = `P(${run.token}) = ${number(p_answer[cell])}`;
      const verdict = is_correct(cell) ? "correct" : "incorrect";
      if (run.step) return `${grid.describe(a, operator, b)}: the model writes ${shown} (${verdict}), ${p}`;
      const right = grid.asked(cell, operator);
      return `${text} = ${shown} (${is_correct(cell) ? verdict : `incorrect, the answer is ${right}`}), ${p}`;
    },
  });
  const key = {
    correct: `correct (${correct.toLocaleString("en")})`,
    incorrect: `incorrect (${(legal - correct).toLocaleString("en")})`,
    empty: run.stratum.layout ? grid.empty : "not legal",
  };
  const swatches = Object.entries(key).map(([name, text]) =>
    h("span", {}, h("span", { className: `swatch ${name}` }), text));
  return { map, element: [map.element, h("p", { className: "key-line" }, swatches)] };
}
