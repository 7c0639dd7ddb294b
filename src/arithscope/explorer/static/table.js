// A table with sortable columns, and a pager.

import { h } from "./dom.js";

/**
 * columns: [{title, cell(row), sort, numeric, hint}]; `sort` is the server's name of the column. onsort(sort, descending).
 * row_attributes(row): attributes of its <tr>.
 */
export function sorted_table({ columns, rows, sort, descending, onsort, row_attributes, caption }) {
  const header = columns.map((c) => {
    const sorted = c.sort && c.sort === sort;
    const content = c.sort
      ? h("button", { type: "button", title: c.hint ?? null, onclick: () => onsort(c.sort, sorted ? !descending : true) },
        c.title, h("span", { ariaHidden: "true" }, sorted ? (descending ? " ▼" : " ▲") : ""))
      : h("span", { title: c.hint ?? null }, c.title);
    return h("th", { scope: "col", className: c.numeric ? "numeric" : "", "aria-sort": sorted ? (descending ? "descending" : "ascending") : null }, content);
  });
  return h("div", { className: "scroller", tabIndex: 0, role: "region", ariaLabel: caption }, h("table", { className: "rows" },
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, header)),
    h("tbody", {}, rows.map((r) => h("tr", row_attributes?.(r) ?? {}, columns.map((c) => h("td", { className: c.numeric ? "numeric" : "" }, c.cell(r))))))));
}

/** Buttons for the previous and the next page. */
export function pager({ offset, size, total, onpage }) {
  const last = Math.min(offset + size, total);
  const step = (to) => onpage(Math.max(0, Math.min(to, Math.floor(Math.max(0, total - 1) / size) * size)));
  return h("nav", { className: "pager", ariaLabel: "Pages" },
    h("button", { type: "button", disabled: offset === 0, onclick: () => step(offset - size) }, "← previous"),
    h("span", {}, total ? `${(offset + 1).toLocaleString("en")}–${last.toLocaleString("en")} of ${total.toLocaleString("en")}` : "none"),
    h("button", { type: "button", disabled: last >= total, onclick: () => step(offset + size) }, "next →"));
}
