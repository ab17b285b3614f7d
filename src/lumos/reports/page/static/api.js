// The explorer's HTTP API.

export async function ask(path, body = undefined, method = body === undefined ? "GET" : "POST", signal = undefined) {
  const sent = body === undefined && method === "GET" ? { method } : { method, signal, headers: { "content-type": "application/json" }, body: JSON.stringify(body ?? null) };
  const answer = await fetch(path, sent);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found?.error ?? `${answer.status} ${answer.statusText}`);
  return found;
}

// Calls `work(argument)` for the latest argument only: while one call is under way, later ones replace each other.
export function latest(work) {
  let running = false, next = null;
  return async function run(argument) {
    next = { argument };
    if (running) return;
    running = true;
    try {
      while (next) {
        const { argument: now } = next;
        next = null;
        await work(now);
      }
    } finally {
      running = false;
    }
  };
}
