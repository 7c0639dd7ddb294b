// Requests to the server. GET replies are cached. A newer request of the same kind, or another view, aborts those that nobody
// waits for any longer, so that the server need not work for them.

const MAX_CACHED = 64;
const cache = new Map();
const pending = new Map(); // by kind: the URL and the AbortController of the latest request

function url_of(path, values = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") params.set(name, value);
  }
  const query = params.toString();
  return `/api/${path}${query ? `?${query}` : ""}`;
}

/** The kind of a request: the last part of its path. */
function kind_of(url) {
  return url.split("?")[0].split("/").at(-1);
}

function abort(kind) {
  const { url, controller } = pending.get(kind) ?? {};
  controller?.abort();
  cache.delete(url);
  pending.delete(kind);
}

/** Abort all requests: those of a view that is left. */
export function abort_all() {
  [...pending.keys()].forEach(abort);
}

class Refusal extends Error {}

/** The reply. If the request is aborted, the promise is never settled, so that nothing is drawn. */
async function request(url, options, read) {
  const kind = kind_of(url), controller = new AbortController();
  abort(kind);
  pending.set(kind, { url, controller });
  try {
    const response = await fetch(url, { ...options, signal: controller.signal });
    if (response.ok) return await read(response);
    const message = `The server replied with status ${response.status}.`;
    throw new Refusal(await response.json().then(({ error }) => error ?? message, () => message));
  } catch (error) {
    if (controller.signal.aborted) return new Promise(() => {});
    throw error instanceof Refusal ? error : new Error("The server does not answer; is it still running?");
  } finally {
    if (pending.get(kind)?.controller === controller) pending.delete(kind);
  }
}

function cached(url, read) {
  if (cache.has(url)) {
    if (pending.get(kind_of(url))?.url !== url) abort(kind_of(url));
    return cache.get(url);
  }
  const reply = request(url, {}, read);
  reply.catch(() => cache.delete(url));
  cache.set(url, reply);
  if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
  return reply;
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
