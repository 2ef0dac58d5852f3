// RunTail: what the worker keeps of a run so that a late tab can begin: a MemoryMap and the events since.

const TAIL_EVENTS = 4096;

class RunTail {
  constructor() {
    this.header = null;
    this.base = null;
    this.events = [];
    this.loop = null;
  }

  /** Take in one message of the stream. Throws if events are missing in between: ask for a snapshot. */
  receive(message) {
    if (message.type === "snapshot") {
      this.header = message.header;
      this.base = new MemoryMap(message.base);
      this.events = message.events;
      this.loop = message.loop;
    } else if (message.type === "loop") {
      this.loop = message;
    } else if (message.type === "events" && message.run === this.header?.run) {
      const next = (this.events.at(-1) ?? this.base).seq + 1;
      const fresh = message.events.filter(event => event.seq >= next);
      if (fresh.length > 0 && fresh[0].seq !== next) {
        throw new Error(`event ${fresh[0].seq} does not follow ${next - 1}`);
      }
      this.events.push(...fresh);
      if (this.events.length > 2 * TAIL_EVENTS) this.fold();
    }
  }

  fold() {
    for (const event of this.events.splice(0, this.events.length - TAIL_EVENTS)) this.base.apply(event);
  }

  /** The message that brings a late tab to this state. */
  snapshot() {
    return { type: "snapshot", header: this.header, base: { ...this.base }, events: this.events, loop: this.loop };
  }
}
