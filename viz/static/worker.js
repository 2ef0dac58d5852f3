// SharedWorker: one connection to the server for all tabs of a browser. A browser allows six connections to a host, so
// a stream per tab would hang the seventh tab; and a tab that opens late gets its snapshot from here.

importScripts(...["memory_map.js", "run_tail.js", "feed.js"].map(name => name + self.location.search));

const ports = new Set();
const state = new RunTail();
let connection = { type: "connection", open: false };

const feed = new Feed(new URL("../events", self.location), message => {
  if (message.type === "connection") connection = message;
  try {
    state.receive(message);
  } catch (error) {
    console.warn("Pagelens takes a new snapshot:", error.message);
    feed.restart();
    return;
  }
  for (const port of ports) port.postMessage(message);
});

self.onconnect = ({ ports: [port] }) => {
  ports.add(port);
  port.onmessage = ({ data }) => {
    if (data === "bye") ports.delete(port);
    if (data === "snapshot" && state.header) port.postMessage(state.snapshot());
  };
  port.postMessage(connection);
  if (state.header) port.postMessage(state.snapshot());
};
