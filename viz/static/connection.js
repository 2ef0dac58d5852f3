// How a page gets the stream: through the SharedWorker where there is one, else by a connection of its own.

/** Calls `listen(message)` from now on; returns {resync()}, which asks for a snapshot. */
function connectToStream(version, listen) {
  if (typeof SharedWorker === "undefined") {
    const feed = new Feed(new URL("pagelens/events", document.baseURI), listen);
    return { resync: () => feed.restart() };
  }
  let port;
  const connect = () => {
    port = new SharedWorker(new URL(`pagelens/static/worker.js?v=${version}`, document.baseURI), "pagelens").port;
    port.onmessage = ({ data }) => listen(data);
  };
  connect();
  window.addEventListener("pagehide", () => port.postMessage("bye"));
  window.addEventListener("pageshow", event => { if (event.persisted) connect(); });
  return { resync: () => port.postMessage("snapshot") };
}

/** Sends one command to the engine. Resolves to the answer; rejects with the server's message for people. */
async function sendCommand(command) {
  let response;
  try {
    response = await fetch(new URL("pagelens/command", document.baseURI), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(command),
    });
  } catch {
    throw new Error("the server does not answer: is `pagelens` still running?");
  }
  const answer = await response.json().catch(() => ({ error: `the server failed (HTTP ${response.status})` }));
  if (!response.ok) throw new Error(answer.error ?? `the server failed (HTTP ${response.status})`);
  return answer;
}
