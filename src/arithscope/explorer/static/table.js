// A table with sortable columns, and a pager.

import { h, notice } from "./dom.js";

/** What the tables of neurons and heuristics show for a run without the stages they need. */
export function no_classification() {
  return notice("This run has no classified neurons; run it again with all stages.", "error");
}

/**
 * columns: [{title, cell(row), sort, numeric, hint}]; `sort` is the server's name of the column.
 * onsort(sort, descending). row_attributes(row): attributes of its <tr>.
 */
export function sorted_table({ columns, rows, sort, descending, onsort, row_attributes, caption }) {
  const header = columns.map((c) => {
    const is_sorted = c.sort && c.sort === sort;
    const direction = is_sorted ? (descending ? "descending" : "ascending") : null;
    const arrow = { descending: " ▼", ascending: " ▲" }[direction] ?? "";
    const onclick = () => onsort(c.sort, is_sorted ? !descending : true);
    const content = c.sort
      ? h("button", { type: "button", title: c.hint ?? null, onclick },
        c.title, h("span", { ariaHidden: "true" }, arrow))
      : h("span", { title: c.hint ?? null }, c.title);
    return h("th", { scope: "col", className: c.numeric ? "numeric" : "", "aria-sort": direction }, content);
  });
  const body = rows.map((r) => h("tr", row_attributes?.(r) ?? {},
    columns.map((c) => h("td", { className: c.numeric ? "numeric" : "" }, c.cell(r)))));
  return h("div", { className: "scroller", tabIndex: 0, role: "region", ariaLabel: caption },
    h("table", { className: "rows" },
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, header)),
      h("tbody", {}, body)));
}

/** Buttons for the previous and the next page. */
export function pager({ offset, size, total, onpage }) {
  const last = Math.min(offset + size, total);
  const last_page = Math.floor(Math.max(0, total - 1) / size) * size;
  const step = (to) => onpage(Math.max(0, Math.min(to, last_page)));
  const [from, to, of] = [offset + 1, last, total].map((n) => n.toLocaleString("en"));
  return h("nav", { className: "pager", ariaLabel: "Pages" },
    h("button", { type: "button", disabled: offset === 0, onclick: () => step(offset - size) }, "← previous"),
    h("span", {}, total ? `${from}–${to} of ${of}` : "none"),
    h("button", { type: "button", disabled: last >= total, onclick: () => step(offset + size) }, "next →"));
}
