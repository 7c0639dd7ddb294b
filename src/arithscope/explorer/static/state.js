// The view and its settings live in the address, behind the #, so that a link shows the same again.

export function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "prompt", params: new URLSearchParams(query ?? "") };
}

/** A view's settings: what the address says, and defaults for the rest. */
export function settings(params, defaults) {
  return Object.fromEntries(Object.entries(defaults).map(([name, value]) => [name, params.get(name) ?? value]));
}

/** Which matches count: the calibrated ones, unless the address says raw. */
export function criterion_of(params) {
  return params.get("criterion") === "raw" ? "raw" : "calibrated";
}

/** A link to a view. Values that are empty are left out; a list becomes a repeated parameter. */
export function link(view, values) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") params.append(name, one);
    }
  }
  const query = params.toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** Note settings in the address; the view that calls this shows them itself. */
export function note(view, values) {
  history.replaceState(null, "", link(view, values));
}

/** Go somewhere else, as if a link was followed. */
export function go(view, values) {
  location.hash = link(view, values);
}
