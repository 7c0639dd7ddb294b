// The view and its settings are stored in the address, after the #, so that a link restores them.

export function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "prompt", params: new URLSearchParams(query ?? "") };
}

/** A view's settings from the address, with defaults. */
export function settings(params, defaults) {
  return Object.fromEntries(Object.entries(defaults).map(([name, value]) => [name, params.get(name) ?? value]));
}

/** The criterion for matches from the address; calibrated by default. */
export function criterion_of(params) {
  return params.get("criterion") === "raw" ? "raw" : "calibrated";
}

/** A link to a view. Empty values are left out; a list becomes a repeated parameter. */
export function link(view, values) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== "") params.append(name, item);
    }
  }
  const query = params.toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** Store settings in the address without drawing the view again. */
export function save_settings(view, values) {
  history.replaceState(null, "", link(view, values));
}

/** Open a view, as following a link does. */
export function go(view, values) {
  location.hash = link(view, values);
}
