// Asking the server. Answers are kept for a while: the same question is asked once.

const MOST = 64;
const kept = new Map();

function address(path, values = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") params.set(name, value);
  }
  const query = params.toString();
  return `/api/${path}${query ? `?${query}` : ""}`;
}

async function ask(url, options, read) {
  let response;
  try {
    response = await fetch(url, options);
  } catch {
    throw new Error("The server does not answer; is it still running?");
  }
  if (response.ok) return read(response);
  let sentence = `The server answered with ${response.status}.`;
  try { sentence = (await response.json()).error ?? sentence; } catch { /* then the number must do */ }
  throw new Error(sentence);
}

function remembered(url, read) {
  if (!kept.has(url)) {
    const asked = ask(url, {}, read);
    asked.catch(() => kept.delete(url));
    kept.set(url, asked);
    if (kept.size > MOST) kept.delete(kept.keys().next().value);
  }
  return kept.get(url);
}

export function run_path(run, ...parts) {
  return ["runs", run, ...parts].map(encodeURIComponent).join("/");
}

export function get(path, values) {
  return remembered(address(path, values), (response) => response.json());
}

export function get_bytes(path, values) {
  return remembered(address(path, values), (response) => response.arrayBuffer());
}

export function post(path, body) {
  const headers = { "content-type": "application/json" };
  return ask(address(path), { method: "POST", headers, body: JSON.stringify(body) }, (response) => response.json());
}
