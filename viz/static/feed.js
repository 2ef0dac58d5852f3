// Feed: the server's event stream as messages {type, ...}, with reconnection. After a lost connection the server starts
// with a snapshot again, of a new run if it was restarted.

const SECONDS_BETWEEN_TRIES = 1;

class Feed {
  /** `listen(message)` gets snapshot, events and loop as the server sends them, and connection {open} from here. */
  constructor(url, listen) {
    this.url = url;
    this.listen = listen;
    this.open();
  }

  open() {
    this.source = new EventSource(this.url);
    for (const type of ["snapshot", "events", "loop"]) {
      this.source.addEventListener(type, event => this.listen({ type, ...JSON.parse(event.data) }));
    }
    this.source.onopen = () => this.listen({ type: "connection", open: true });
    this.source.onerror = () => {
      this.listen({ type: "connection", open: false });
      if (this.source.readyState === EventSource.CLOSED) setTimeout(() => this.restart(), SECONDS_BETWEEN_TRIES * 1000);
    };
  }

  /** Connect anew, which brings a snapshot. */
  restart() {
    this.source.close();
    this.open();
  }

  close() {
    this.source.close();
  }
}
