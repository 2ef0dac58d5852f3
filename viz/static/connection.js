// How a page talks to the server: its stream comes through the SharedWorker where there is one, else by a connection of
// its own, and what it sends is JSON.

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

/** Sends one command to the engine. Resolves and rejects like postJSON. */
function sendCommand(command) {
  return postJSON(new URL("pagelens/command", document.baseURI), command);
}

/** Resolves to the server's answer; rejects with its message for people. */
async function postJSON(url, data) {
  let response;
  try {
    response = await fetch(url, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(data),
    });
  } catch {
    throw new Error("the server does not answer: is `pagelens` still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `the server failed (HTTP ${response.status})`);
  return answer;
}
