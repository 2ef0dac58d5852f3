// Track: one variant of a scenario, as the server runs it, in a viewer of its own; and where in it the player stops.
//
//     the answer     {"header" ...}  {event 0}  {"note": "moment", ...}  {event 1} ...       a line each
//                          |             |               |
//                     readRecording -> History         stops

class Track {
  /** `changed()` is called as the run grows, and when it has failed (then `error` says why). */
  constructor(box, scenario, variant, changed) {
    this.scenario = scenario;
    this.variant = variant; // {name, title}, or null if there is only one way
    this.changed = changed;
    this.stops = []; // {at, kind, number, ...the note}: the player stands after event `at`; in order
    this.history = null;
    this.error = "";
    this.waiting = false; // for another run on the server
    this.aborter = new AbortController();
    this.generated = [0]; // tokens after each TokensGenerated, for `generatedAt`
    const viewer = make("div", "viewer");
    this.numbers = make("p", "compared");
    this.recording = make("a", "", { href: this.url("/recording"), download: "" }, "recording");
    box.append(make("div", "variant", {}, ...(variant ? [make("h3", "", {}, variant.title, " ", this.recording)] : []),
      this.numbers, viewer));
    this.viewer = new Viewer(viewer);
    this.viewer.place = { scenario: scenario.name, ...(variant ? { variant: variant.name } : {}) };
  }

  url(tail) {
    const query = this.variant ? `?${new URLSearchParams({ variant: this.variant.name })}` : "";
    return new URL(`pagelens/scenario/${encodeURIComponent(this.scenario.name)}${tail}${query}`, document.baseURI).href;
  }

  /** Read the run while it is made. */
  async load() {
    try {
      const response = await fetch(this.url(""), { signal: this.aborter.signal });
      if (!response.ok) throw new Error((await response.json()).error ?? `the server answered ${response.status}`);
      const lines = withoutNotes(response.body, note => this.take(note));
      await readRecording(lines, history => this.grow(history), { eager: true });
    } catch (error) {
      if (!this.aborter.signal.aborted) this.error ||= error.message;
    }
    this.changed();
  }

  close() {
    this.aborter.abort();
    this.viewer.close();
  }

  take(note) {
    if (note.note === "waiting") this.waiting = true;
    else if (note.note === "failed") this.error = note.message;
    else if ("question" in note) this.addStop("question", note, note.seq - 1);
    else if ("tour" in note) this.addStop("tour", note, note.seq);
    else this.telling = note.seq;
    this.changed();
  }

  addStop(kind, note, at) {
    this.stops.push({ ...note, kind, number: note[kind], at });
  }

  grow(history) {
    this.waiting = false;
    if (this.history) this.viewer.redraw();
    else {
      this.history = history;
      this.placed = history.oldest - 1; // where the player has put it
      this.viewer.open(history, this.placed);
    }
    this.changed();
  }

  /** Where the viewer stands: after this event. */
  get at() { return this.viewer.map?.seq ?? -1; }

  /** Whether there is nothing after where it stands, and nothing comes any more. */
  get ended() { return this.history !== null && !this.history.growing && this.at >= this.history.newest; }

  /** The first stop from where it stands up to event `to` that `isOpen` says is still to be shown. */
  nextStop(to, isOpen) {
    return this.stops.filter(stop => stop.at >= this.at && stop.at <= to && isOpen(stop))
      .reduce((best, stop) => (!best || stop.at < best.at ? stop : best), null);
  }

  /** The last event of step `number`; null while the run has not come past it. */
  endOfStep(number) {
    const { steps } = this.history.steps;
    const index = steps.findLastIndex(step => step.step <= number);
    if (index === steps.length - 1 && this.history.growing) return null;
    return index < 0 ? this.history.oldest - 1 : steps[index].last;
  }

  /** The last event of the first `ns` of the run; null while the run has not come so far. */
  endOfTime(ns) {
    const { steps } = this.history.steps;
    const index = steps.findLastIndex(step => step.t <= ns);
    if (index === steps.length - 1 && this.history.growing) return null;
    if (index < 0) return this.history.oldest - 1;
    const later = this.history.slice(steps[index].first, steps[index].last + 1).findIndex(event => event.t > ns);
    return later < 0 ? steps[index].last : steps[index].first + later - 1;
  }

  /** How many tokens were computed, some of them again, in the steps planned up to and with event `seq`. */
  computedAt(seq) {
    const { steps } = this.history.steps;
    const index = this.history.steps.indexOf(seq);
    if (index < 0) return 0; // before the first event
    const isPlanned = (this.history.previous("StepPlanned", seq + 1) ?? -1) >= steps[index].first;
    return sum(steps.slice(0, index + (isPlanned ? 1 : 0)).map(step => step.tokens));
  }

  /** How many tokens were generated up to and with event `seq`. */
  generatedAt(seq) {
    const seqs = this.history.kinds.get("TokensGenerated") ?? [];
    while (this.generated.length <= seqs.length) {
      const event = this.history.event(seqs[this.generated.length - 1]);
      this.generated.push(this.generated.at(-1) + event.sequences.length);
    }
    return this.generated[firstAtLeast(seqs, seq + 1)];
  }
}

/** A stream of lines without those that are notes; `told` gets each of them, before the lines after it go on. */
function withoutNotes(stream, told) {
  let rest = "";
  const sort = new TransformStream({
    transform(text, controller) {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith('{"note"')) told(JSON.parse(line));
        else controller.enqueue(`${line}\n`);
      }
    },
    flush(controller) { if (rest) controller.enqueue(rest); },
  });
  return stream.pipeThrough(new TextDecoderStream()).pipeThrough(sort).pipeThrough(new TextEncoderStream());
}

if (typeof module !== "undefined") module.exports = { Track, withoutNotes };
