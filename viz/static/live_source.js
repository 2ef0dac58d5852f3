// LiveSource: the engine behind this page, as a History that grows with the stream, for all views of the page.

class LiveSource {
  constructor(version) {
    this.history = null; // of the run that goes on now
    this.loop = { steps_per_second: null, failure: null };
    this.connected = false;
    this.views = new Set();
    this.stream = connectToStream(version, message => this.receive(message));
  }

  /**
   * A view has `root`, and as it needs them: onRun(history) for a new history, onEvents(events) after they were taken
   * in, onLoop(), onConnection(). It is told at once what there is already.
   */
  follow(view) {
    this.views.add(view);
    view.onConnection?.();
    if (this.history) {
      view.onRun?.(this.history);
      view.onLoop?.();
    }
  }

  receive(message) {
    if (message.type === "connection") {
      this.connected = message.open;
      this.tell("onConnection");
    } else if (message.type === "loop") {
      this.loop = message;
      this.tell("onLoop");
    } else if (message.type === "snapshot") {
      this.lost = false;
      this.begin(message);
    } else if (!this.lost && message.run === this.history?.header.run) {
      const fresh = message.events.filter(event => event.seq > this.history.newest);
      try {
        for (const event of fresh) this.history.append(event);
      } catch (error) {
        console.warn("Pagelens takes a new snapshot:", error.message);
        this.lost = true; // events are missing, a snapshot is on its way
        this.stream.resync();
        return;
      }
      if (fresh.length > 0) this.tell("onEvents", fresh);
    }
  }

  begin({ header, base, events, loop }) {
    this.history = new History(header, base, { live: true });
    for (const event of events) this.history.append(event);
    this.loop = loop;
    this.tell("onRun", this.history);
    this.tell("onLoop");
  }

  tell(name, argument) {
    for (const view of this.views) {
      if (view.root.isConnected) view[name]?.(argument);
      else this.views.delete(view); // Gradio took it off the page and tells nobody
    }
  }

  /** Fetch the stretch before the oldest event held; returns whether there was one. */
  async loadOlder() {
    const { history } = this;
    if (history.oldest === 0) return false;
    const url = new URL(`pagelens/history?run=${history.header.run}&before=${history.oldest}`, document.baseURI);
    const response = await fetch(url).catch(() => null);
    if (!response?.ok) return false; // the server holds it no longer, or is gone
    history.prepend(await response.json());
    return true;
  }
}
