// Element builders, controls, and number formats.

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list" && !(element instanceof SVGElement)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  const is_shown = (child) => child !== null && child !== undefined && child !== false;
  element.append(...children.flat(Infinity).filter(is_shown));
  return element;
}

/** An HTML element; attributes that begin with "on" are event listeners. */
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

export const SIGNS = { "+": "+", "-": "−", "*": "×", "/": "÷" };
export const OPERATOR_COLOURS = {
  "+": "var(--plus)", "-": "var(--minus)", "*": "var(--times)", "/": "var(--divide)", mean: "var(--ink)",
};

/** Three significant digits, without trailing zeros. */
export function number(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e5 || size < 1e-4) return x.toExponential(1).replace("-", "−").replace("e+", "e");
  return Number(x.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 }).replace("-", "−");
}

/** A number with its sign, to three decimals. */
export function signed(x) {
  return `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(3)}`;
}

export function percent(x) {
  if (x === null || x === undefined) return "–";
  const decimals = x > 0.995 || x < 0.005 ? 1 : 0;
  return `${(100 * x).toFixed(decimals).replace("-", "−")} %`;
}

/** A number with its noun, in the plural unless it is 1. */
export function count(n, noun) {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}

/** A mean with its 95 % interval. */
export function interval(mean) {
  if (!mean || mean.value === null || mean.value === undefined) return "–";
  if (mean.low === null || mean.low === undefined) return number(mean.value);
  return `${number(mean.value)} [${number(mean.low)}, ${number(mean.high)}]`;
}

export function prompt_text(op1, operator, op2) {
  return `${op1}${operator}${op2}`;
}

/** A labelled select. Choices are [value, text]. */
export function choice(label, value, choices, onchange) {
  const select = h("select", { onchange: (event) => onchange(event.target.value) },
    choices.map(([v, text]) => h("option", { value: v, selected: v === value }, text)));
  return h("label", { className: "control" }, h("span", {}, label), select);
}

/** A group of buttons, one of which is pressed. Choices are [value, text, title]. */
export function buttons(label, value, choices, onchange, is_disabled = () => false) {
  const group = h("div", { className: "buttons", role: "group", ariaLabel: label });
  const draw = (current) => group.replaceChildren(...choices.map(([v, text, title]) =>
    h("button", { type: "button", "aria-pressed": String(v === current), title: title ?? null, disabled: is_disabled(v),
      onclick: () => { draw(v); group.querySelector('[aria-pressed="true"]')?.focus(); onchange(v); } }, text)));
  draw(value);
  return h("div", { className: "control" }, h("span", {}, label), group);
}

export function operator_buttons(operators, value, onchange, all = false) {
  const choices = operators.map((o) => [o, SIGNS[o] ?? o]);
  return buttons("Operator", value, all ? [["", "all"], ...choices] : choices, onchange);
}

export function criterion_buttons(value, onchange) {
  return buttons("Matches", value, [
    ["calibrated", "calibrated", "score ≥ 0.6 and false-discovery rate ≤ 0.05"],
    ["raw", "raw", "score ≥ 0.6, the paper's criterion"],
  ], onchange);
}

/** A status or error message. */
export function notice(text, kind = "") {
  return h("p", { className: `notice ${kind}`, role: kind === "error" ? "alert" : "status" }, text);
}
