// Line charts with bands, small matrices, waterfall charts. Line charts fill the available width.

import { css, text_colour } from "./colours.js";
import { h, interval, number, s, signed } from "./dom.js";

const MAX_DOTS = 25; // a line with more points shows none of them

/** An element whose content is drawn again whenever its width changes. */
export function fit_width(className, draw) {
  const holder = h("div", { className });
  let width = 0;
  new ResizeObserver(([entry]) => {
    const new_width = Math.round(entry.contentRect.width);
    if (new_width && new_width !== width) {
      width = new_width;
      holder.replaceChildren(draw(width));
    }
  }).observe(holder);
  return holder;
}

/** At most `count` or so round numbers between low and high. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((candidate) => candidate >= rough);
  const values = [];
  for (let x = Math.ceil(low / step) * step; x <= high + 1e-9 * step; x += step) values.push(Number(x.toPrecision(12)));
  return values;
}

/**
 * series: [{name, colour, dashed, points: [{x, value, low, high}]}], points sorted by x; dashed may be "dotted".
 * names: labels of x = 0, 1, 2…. marks: [{x, text}], vertical lines.
 */
export function line_chart({ series, x_label, y_label, height = 240, y_range, names, marks = [], title }) {
  const has_value = (p) => p.value !== null && p.value !== undefined;
  const shown = series.map((line) => ({ ...line, points: line.points.filter(has_value) }))
    .filter((line) => line.points.length);
  const all = shown.flatMap((line) => line.points);
  if (!all.length) return h("p", { className: "notice" }, "No data.");
  const xs = all.map((p) => p.x);
  const ys = all.flatMap((p) => [p.value, p.low ?? p.value, p.high ?? p.value]);
  let [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  let [y0, y1] = y_range ?? [Math.min(...ys), Math.max(...ys)];
  if (y_range) { y0 = Math.min(y0, ...ys); y1 = Math.max(y1, ...ys); }
  if (y0 === y1) { y0 -= 0.5; y1 += 0.5; }
  const chart = fit_width("chart", (width) => {
    const [left, right, top, bottom] = [48, 26, 10, 40];
    const x = (v) => left + ((v - x0) / (x1 - x0)) * (width - left - right);
    const y = (v) => height - bottom - ((v - y0) / (y1 - y0)) * (height - top - bottom);
    const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
    for (const t of ticks(y0, y1, 5)) {
      svg.append(s("line", { x1: left, x2: width - right, y1: y(t), y2: y(t), class: "grid" }),
        s("text", { x: left - 6, y: y(t) + 4, class: "tick end" }, number(t)));
    }
    const x_ticks = names ? names.map((_, i) => i) : ticks(x0, x1, Math.max(2, Math.floor(width / 90)));
    const every = names ? Math.ceil((names.length * 74) / (width - left - right)) : 1;
    const x_text = (v) => (names ? names[v] : number(v));
    x_ticks.forEach((t, i) => {
      if (i % every) return;
      svg.append(s("text", { x: x(t), y: height - bottom + 16, class: "tick middle" }, x_text(t)));
    });
    const middle = (top + height - bottom) / 2;
    svg.append(s("text", { x: (left + width - right) / 2, y: height - 6, class: "label middle" }, x_label),
      s("text", { transform: `translate(12 ${middle}) rotate(-90)`, class: "label middle" }, y_label));
    for (const mark of marks) {
      svg.append(s("line", { x1: x(mark.x), x2: x(mark.x), y1: top, y2: height - bottom, class: "mark" }),
        s("text", { x: x(mark.x) + 4, y: height - bottom - 6, class: "tick" }, mark.text));
    }
    for (const { colour, dashed, points, name } of shown) {
      const band = points.filter((p) => p.low !== null && p.low !== undefined);
      if (band.length > 1) {
        const upper = band.map((p) => `${x(p.x)},${y(p.high)}`);
        const lower = band.toReversed().map((p) => `${x(p.x)},${y(p.low)}`);
        svg.append(s("polygon", { points: [...upper, ...lower].join(" "), fill: colour, class: "band" }));
      }
      const line = points.map((p) => `${x(p.x)},${y(p.value)}`).join(" ");
      svg.append(s("polyline", { points: line, stroke: colour, class: line_class(dashed) }));
      if (points.length <= MAX_DOTS) {
        svg.append(...points.map((p) => s("circle", { cx: x(p.x), cy: y(p.value), r: 3, fill: colour },
          s("title", {}, `${name}, ${x_label} ${x_text(p.x)}: ${interval(p)}`))));
      }
    }
    return svg;
  });
  const key = series.length > 1 ? h("ul", { className: "key" }, shown.map((line) => {
    const sample = s("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: line.colour, class: line_class(line.dashed) });
    return h("li", {}, s("svg", { width: 22, height: 8, "aria-hidden": "true" }, sample), line.name);
  })) : null;
  return h("figure", { className: "line-chart" }, title ? h("figcaption", {}, title) : null, chart, key);
}

function line_class(dashed) {
  return `line ${dashed === "dotted" ? "dotted" : dashed ? "dashed" : ""}`;
}

/**
 * A small matrix. rows, columns: names; value(i, j); colour(value); text(i, j): tooltip; label(i, j): text in the cell;
 * pick(i, j): click handler; is_selected(i, j), is_framed(i, j).
 */
export function matrix({ rows, columns, value, colour, text, label, pick, is_selected, is_framed, title, row_title }) {
  const cells = rows.map((_, i) => columns.map((__, j) => {
    const v = value(i, j);
    const cell = h(pick ? "button" : "span", {
      className: `cell${is_framed?.(i, j) ? " framed" : ""}`, type: pick ? "button" : null,
      title: text(i, j), ariaLabel: text(i, j),
      "aria-pressed": pick ? String(Boolean(is_selected?.(i, j))) : null, onclick: pick ? () => pick(i, j) : null,
    }, label?.(i, j));
    if (v !== null && v !== undefined) {
      cell.style.backgroundColor = css(colour(v));
      cell.style.color = text_colour(colour(v));
    }
    return h("td", {}, cell);
  }));
  const corner = h("td", { className: "corner" }, row_title ?? "");
  const is_steep = columns.length > 6 && columns.some((name) => name.length > 4);
  return h("div", { className: is_steep ? "matrix steep" : "matrix" }, h("p", { className: "hint" }, title), h("table", { ariaLabel: title },
    h("thead", {}, h("tr", {}, corner, columns.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((name, i) => h("tr", {}, h("th", { scope: "row" }, name), cells[i])))));
}

/** Bars that add up from zero to a total. steps: [{name, value, note}]. */
export function waterfall({ steps, total, total_name }) {
  let sum = 0;
  const bars = steps.map((step) => {
    const from = sum;
    sum += step.value;
    return { ...step, from, to: sum };
  });
  const low = Math.min(0, ...bars.map((b) => b.to));
  const high = Math.max(0, total, ...bars.map((b) => b.to));
  const percent_of = (v) => (100 * (v - low)) / (high - low || 1);
  const row = (name, from, to, text, kind, note) => {
    const bar = h("span", { className: `bar ${kind}` });
    bar.style.left = `${percent_of(Math.min(from, to))}%`;
    bar.style.width = `max(2px, ${Math.abs(percent_of(to) - percent_of(from))}%)`;
    const zero = h("span", { className: "zero" });
    zero.style.left = `${percent_of(0)}%`;
    return h("tr", {},
      h("th", { scope: "row" }, name, note ? h("small", {}, note) : null),
      h("td", { className: "track" }, zero, bar),
      h("td", { className: "figure" }, text));
  };
  return h("table", { className: "waterfall" }, h("tbody", {},
    bars.map((b) => row(b.name, b.from, b.to, signed(b.value), b.value >= 0 ? "up" : "down", b.note)),
    row(total_name, 0, total, total.toFixed(3), "total")));
}

/** A horizontal bar for a share between 0 and 1. */
export function share_bar(value, className = "") {
  const fill = h("span", { className: "fill" });
  fill.style.width = `${100 * Math.min(1, Math.max(0, value ?? 0))}%`;
  return h("span", { className: `share ${className}` }, fill);
}
