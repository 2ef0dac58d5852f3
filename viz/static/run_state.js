// RunState: what a viewer holds of a run, fed by the messages of the stream. The worker keeps one for late tabs, each
// page keeps its own.

const RECENT_EVENTS = 4096;

class RunState {
  constructor() {
    this.header = null;
    this.map = null;
    this.recent = []; // the newest events, without a gap, up to map.seq
    this.loop = { steps_per_second: null, failure: null };
  }

  /**
   * Take in one message; `seen(event)` is called for each new event, with the map just after it.
   * Throws if events are missing in between: ask for a snapshot.
   */
  receive(message, seen = () => {}) {
    if (message.type === "snapshot") {
      this.header = message.header;
      this.map = new MemoryMap(message.map);
      this.recent = message.recent;
      this.loop = message.loop;
    } else if (message.type === "loop") {
      this.loop = message;
    } else if (message.type === "events" && message.run === this.header?.run) {
      const fresh = message.events.filter(event => event.seq > this.map.seq);
      this.recent = this.recent.concat(fresh);
      if (this.recent.length > 2 * RECENT_EVENTS) this.recent = this.recent.slice(-RECENT_EVENTS);
      for (const event of fresh) {
        this.map.apply(event);
        seen(event);
      }
    }
  }

  /** The message that brings a late viewer to this state. */
  snapshot() {
    return { type: "snapshot", header: this.header, map: { ...this.map }, recent: this.recent, loop: this.loop };
  }

  /** A recent event by its number, or undefined if it is too long ago. */
  event(seq) {
    return this.recent.length > 0 ? this.recent[seq - this.recent[0].seq] : undefined;
  }
}
