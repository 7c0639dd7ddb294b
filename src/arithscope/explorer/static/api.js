// Requests to the server. GET replies are cached.

const MAX_CACHED = 64;
const cache = new Map();

function url_of(path, values = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") params.set(name, value);
  }
  const query = params.toString();
  return `/api/${path}${query ? `?${query}` : ""}`;
}

async function request(url, options, read) {
  let response;
  try {
    response = await fetch(url, options);
  } catch {
    throw new Error("The server does not answer; is it still running?");
  }
  if (response.ok) return read(response);
  let message = `The server replied with status ${response.status}.`;
  try { message = (await response.json()).error ?? message; } catch { /* not JSON: keep the status */ }
  throw new Error(message);
}

function cached(url, read) {
  if (!cache.has(url)) {
    const reply = request(url, {}, read);
    reply.catch(() => cache.delete(url));
    cache.set(url, reply);
    if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
  }
  return cache.get(url);
}

export function run_path(run, ...parts) {
  return ["runs", run, ...parts].map(encodeURIComponent).join("/");
}

export function get(path, values) {
  return cached(url_of(path, values), (response) => response.json());
}

export function get_bytes(path, values) {
  return cached(url_of(path, values), (response) => response.arrayBuffer());
}

export function post(path, body) {
  const headers = { "content-type": "application/json" };
  return request(url_of(path), { method: "POST", headers, body: JSON.stringify(body) }, (response) => response.json());
}
