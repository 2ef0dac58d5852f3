// History: what is held of one run, and the picture at any moment of it. Time travel reads it; the engine runs on.
//
//     chunk 0                chunk 1                chunk 2 (grows)
//     base | events          base | events          base | events        base: the MemoryMap before the chunk's first
//                                   ^ cursor                      ^ map, after the newest event
//
// The picture at a cursor is the base of its chunk with the events up to it. A long recording keeps its events as text
// and parses a chunk when somebody looks there.

const KEYFRAME_EVERY = 4096;
const EVENTS_HELD = 65536; // of a live run; older ones can be fetched again while the server holds them
const CHUNKS_PARSED = 12;

class History {
  /** `base` is a MemoryMap as JSON, before the first event. `live`: old chunks are dropped. */
  constructor(header, base, { live = false } = {}) {
    this.header = header;
    this.live = live;
    this.chunks = [{ first: base.seq + 1, count: 0, base, events: [], text: null }];
    this.map = copyOfMap(base);
    this.steps = new StepLog(header, base);
    this.kinds = new Map(); // kind -> the seqs of its events, ascending
    this.parsed = []; // chunks of text whose events are at hand, newest use last
  }

  /** The seq of the oldest event held, and of the newest; newest < oldest while there are none. */
  get oldest() { return this.chunks[0].first; }
  get newest() { return this.map.seq; }

  /** Take in the next event. Throws if it does not follow the newest one. */
  append(event) {
    let chunk = this.chunks.at(-1);
    if (chunk.count >= KEYFRAME_EVERY) chunk = this.begin();
    this.map.apply(event);
    chunk.events.push(event);
    chunk.count++;
    this.note(event);
  }

  /** Take in a whole chunk of a recording: its lines as text, and their events. */
  appendText(text, events) {
    Object.assign(this.begin(), { events: null, text, count: events.length });
    for (const event of events) {
      this.map.apply(event);
      this.note(event);
    }
  }

  /** Put the chunk in front that ends where this history begins. */
  prepend({ base, events }) {
    if (events.length === 0 || events.at(-1).seq + 1 !== this.oldest) return;
    const older = new History(this.header, base);
    for (const event of events) {
      older.map.apply(event);
      older.note(event);
    }
    this.chunks.unshift({ first: base.seq + 1, count: events.length, base, events, text: null });
    this.steps.prepend(older.steps);
    for (const [kind, seqs] of older.kinds) this.kinds.set(kind, seqs.concat(this.kinds.get(kind) ?? []));
  }

  /** A new chunk, on top of the picture after the newest event. */
  begin() {
    const chunk = { first: this.map.seq + 1, count: 0, base: copyOfMap(this.map), events: [], text: null };
    if (this.chunks.at(-1).count === 0) this.chunks.pop();
    this.chunks.push(chunk);
    if (this.live && this.chunks.length > EVENTS_HELD / KEYFRAME_EVERY) this.dropOldest();
    return chunk;
  }

  dropOldest() {
    this.chunks.shift();
    this.steps.dropBefore(this.oldest);
    for (const [kind, seqs] of this.kinds) this.kinds.set(kind, seqs.slice(firstAtLeast(seqs, this.oldest)));
  }

  note(event) {
    const seqs = this.kinds.get(event.kind);
    if (seqs) seqs.push(event.seq);
    else this.kinds.set(event.kind, [event.seq]);
    this.steps.note(event, this.map);
  }

  holds(seq) {
    return seq >= this.oldest && seq <= this.newest;
  }

  /** An event by its number, or undefined if it is not held. */
  event(seq) {
    if (!this.holds(seq)) return undefined;
    const chunk = this.chunkOf(seq);
    return this.eventsOf(chunk)[seq - chunk.first];
  }

  /** The events from `start` up to before `end`, as far as they are held. */
  slice(start, end) {
    const found = [];
    for (let seq = Math.max(start, this.oldest); seq < Math.min(end, this.newest + 1);) {
      const chunk = this.chunkOf(seq);
      const part = this.eventsOf(chunk).slice(seq - chunk.first, end - chunk.first);
      found.push(...part);
      seq = chunk.first + chunk.count;
    }
    return found;
  }

  /** The picture after event `seq`, a map of the caller's own; `from`, an earlier such map, is carried on if near. */
  pictureAt(seq, from = null) {
    const chunk = this.chunkOf(Math.max(seq, this.oldest));
    const near = from && from.seq <= seq && from.seq >= chunk.base.seq;
    const picture = near ? from : copyOfMap(chunk.base);
    const events = this.eventsOf(chunk);
    for (let next = picture.seq + 1; next <= seq; next++) picture.apply(events[next - chunk.first]);
    return picture;
  }

  /** The nearest event of a kind (or of any of several) after `seq`, or before it: its seq, or undefined. */
  next(kinds, seq) {
    const found = [kinds].flat().map(kind => {
      const seqs = this.kinds.get(kind) ?? [];
      return seqs[firstAtLeast(seqs, seq + 1)];
    });
    return found.reduce((best, one) => (one === undefined || best < one ? best : one), undefined);
  }

  previous(kinds, seq) {
    const found = [kinds].flat().map(kind => {
      const seqs = this.kinds.get(kind) ?? [];
      return seqs[firstAtLeast(seqs, seq) - 1];
    });
    return found.reduce((best, one) => (one === undefined || best > one ? best : one), undefined);
  }

  /** The newest event of a kind up to and with `seq`, or undefined. */
  lastOfKind(kind, seq = this.newest) {
    const found = this.previous(kind, seq + 1);
    return found === undefined ? undefined : this.event(found);
  }

  chunkOf(seq) {
    let low = 0;
    let high = this.chunks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.chunks[middle].first <= seq) low = middle;
      else high = middle - 1;
    }
    return this.chunks[low];
  }

  eventsOf(chunk) {
    if (chunk.text === null) return chunk.events;
    if (chunk.events === null) {
      chunk.events = parseLines(chunk.text);
      this.parsed.push(chunk);
      if (this.parsed.length > CHUNKS_PARSED) this.parsed.shift().events = null;
    }
    return chunk.events;
  }
}

/**
 * A MemoryMap like `state`, which may be one or its JSON, that can be changed on its own. What a map never changes in
 * place, but replaces (the texts of a block, the tokens of a sequence that has ended), the two have in common: so it
 * takes a twentieth of the time of a deep copy.
 */
function copyOfMap(state) {
  const map = new MemoryMap(state);
  for (const [name, part] of Object.entries(state)) {
    if (Array.isArray(part)) map[name] = part.slice();
    else if (typeof part === "object" && part !== null) map[name] = { ...part };
  }
  for (const [name, view] of Object.entries(state.sequences)) {
    const { status, table, token_ids, texts } = view;
    map.sequences[name] = { ...view, table: table.slice() };
    if (status !== "finished") Object.assign(map.sequences[name], { token_ids: token_ids.slice(), texts: texts.slice() });
  }
  return map;
}

/** The events on lines of JSON. */
function parseLines(text) {
  return JSON.parse(`[${text.trimEnd().replaceAll("\n", ",")}]`);
}

/** Index of the first of ascending `numbers` that is at least `least`. */
function firstAtLeast(numbers, least) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < least) low = middle + 1;
    else high = middle;
  }
  return low;
}

if (typeof module !== "undefined") module.exports = { History };
