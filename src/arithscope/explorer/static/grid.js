// The operand grid of a run: the operands of its rows and columns, and what is asked for in each of its cells.

import { SIGNS } from "./dom.js";

/** The correct answer; null for division by zero. */
export function answer(op1, operator, op2) {
  if (operator === "+") return op1 + op2;
  if (operator === "-") return op1 - op2;
  if (operator === "*") return op1 * op2;
  return op2 === 0 ? null : Math.floor(op1 / op2);
}

/** The value of a token that holds these digits of a number. */
function token_value(asked, number) {
  const from_low = Math.floor(number / 10 ** asked.low);
  return asked.high === null ? from_low : from_low % 10 ** (asked.high - asked.low);
}

/** A token's value as it is written. */
export function written_token(asked, value) {
  return String(value).padStart(asked.high === null ? 1 : asked.high - asked.low, "0");
}

/** Cells are row · columns + column. op1 names the rows, op2 the columns. */
export function grid_of({ stratum, step, token }) {
  const { op1, op2, answers, asked, layout } = stratum;
  const columns = op2.length;
  const places = [op1, op2].map((side) => new Map(side.map((operand, i) => [operand, i])));
  const operands = (cell) => [op1[Math.floor(cell / columns)], op2[cell % columns]];
  const written = (value) => written_token(asked, value);
  /** The tokens of a number that come before the one that is asked for. */
  const given = (number) => (asked.high === null ? "" : String(Math.floor(number / 10 ** asked.high)));
  const is_legal = (a, operator, b) => {
    const number = answer(a, operator, b);
    return number !== null && answers[0] <= number && number <= answers[1];
  };
  return {
    sides: [op1, op2],
    cells: op1.length * columns,
    empty: layout ? `not in layout ${layout}` : "not a legal prompt",
    operands, written, given, is_legal,
    /** The cell of two operands; undefined if they are not on the grid. */
    cell(a, b) {
      const [row, column] = [places[0].get(a), places[1].get(b)];
      return row === undefined || column === undefined ? undefined : row * columns + column;
    },
    is_legal_cell(cell, operator) {
      const [a, b] = operands(cell);
      return is_legal(a, operator, b);
    },
    /** The value of the token asked for in a cell's prompt. */
    asked(cell, operator) {
      const [a, b] = operands(cell);
      return token_value(asked, answer(a, operator, b));
    },
    /** A prompt with its answer, and the token that is asked for. */
    describe(a, operator, b) {
      const number = answer(a, operator, b);
      const text = `${a} ${SIGNS[operator]} ${b}${number === null ? "" : ` = ${number}`}`;
      return step && is_legal(a, operator, b) ? `${text}, ${token} ${written(token_value(asked, number))}` : text;
    },
    /** Whether axes are logarithmic: legal products of whole numbers lie along the axes. */
    is_logarithmic: (operator) => operator === "*" && !layout,
  };
}
