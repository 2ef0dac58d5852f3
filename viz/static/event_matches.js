// Which events of a history a filter lets through. A long history is searched in slices, so that the page stays awake.

/** The kinds of events by what they are about; a kind that is in none belongs to the engine. */
const EVENT_GROUPS = {
  memory: ["PrefixLookup", "BlockAllocated", "BlockShared", "BlockReleased", "BlockSealed", "BlockUnsealed",
    "BlockEvicted", "BlockCopied", "BlocksSwappedOut", "BlocksSwappedIn", "HostBlocksFreed"],
  scheduling: ["RequestArrived", "RequestRejected", "RequestAborted", "RequestPreempted", "SequenceAdmitted",
    "SequenceResumed", "SequenceForked", "SequenceScheduled", "SequenceFinished", "StepPlanned"],
  text: ["TokensWritten", "TokensGenerated"],
  engine: ["StepLaunched", "StepCommitted", "StepFailed", "KernelTraced", "EngineHalted", "EngineContinued"],
};

const EVENTS_AT_ONCE = 2048;

function groupOfKind(kind) {
  return Object.keys(EVENT_GROUPS).find(group => EVENT_GROUPS[group].includes(kind)) ?? "engine";
}

/** Whether an event is about a subject: {block}, or {sequence, request}. */
function isAbout(event, { block, sequence, request }) {
  if (block !== undefined) return blocksOf(event).includes(block);
  return sequencesOf(event).includes(sequence) || event.request === request;
}

class EventMatches {
  /** `kinds`: a Set, null for all; `subject`: see isAbout, null for any; `words`: all of them must occur. */
  constructor(history, { kinds, subject, words }) {
    Object.assign(this, { history, kinds, subject, words });
    this.oldest = history.oldest;
    this.upTo = history.oldest - 1; // searched so far
    this.all = !kinds && !subject && words.length === 0;
    this.seqs = []; // of the matches, ascending; unused where all match
    this.plain = { map: { block_size: history.header.block_size, sequences: {} }, event: seq => history.event(seq) };
    if (kinds && !subject && words.length === 0) {
      this.seqs = [...Float64Array.from([...kinds].flatMap(kind => history.kinds.get(kind) ?? [])).sort()];
      this.upTo = history.newest;
    }
  }

  get length() { return this.all ? this.history.newest - this.history.oldest + 1 : this.seqs.length; }

  at(index) { return this.all ? this.history.oldest + index : this.seqs[index]; }

  /** Index of the last match up to and with event `seq`, -1 if there is none. */
  indexAt(seq) {
    return this.all ? Math.min(this.length - 1, seq - this.history.oldest) : firstAtLeast(this.seqs, seq + 1) - 1;
  }

  /** The part of the history that is searched, 1 for all of it. */
  get progress() {
    const { oldest, newest } = this.history;
    return this.all || newest < oldest ? 1 : (this.upTo - oldest + 1) / (newest - oldest + 1);
  }

  /** Whether the history has got an older part, so that the search must begin anew. */
  get isOutdated() { return this.history.oldest < this.oldest; }

  /** Follow the history for at most about `ms` milliseconds. */
  update(ms) {
    const { history } = this;
    if (this.all) return;
    if (history.oldest > this.oldest) {
      this.seqs.splice(0, firstAtLeast(this.seqs, history.oldest));
      this.oldest = history.oldest;
      this.upTo = Math.max(this.upTo, history.oldest - 1);
    }
    for (const end = performance.now() + ms; this.upTo < history.newest && performance.now() < end;) {
      const events = history.slice(this.upTo + 1, this.upTo + 1 + EVENTS_AT_ONCE);
      for (const event of events) if (this.matches(event)) this.seqs.push(event.seq);
      this.upTo += events.length;
    }
  }

  matches(event) {
    if (this.kinds && !this.kinds.has(event.kind)) return false;
    if (this.subject && !isAbout(event, this.subject)) return false;
    if (this.words.length === 0) return true;
    const { title, text } = sentenceOf(event, this.plain);
    const told = `${event.seq} ${event.kind} ${title} ${text} ${event.why} ${event.why.replaceAll("_", " ")} `
      + [event.texts ?? [], event.sequences ?? []].flat().join(" ");
    const lower = told.toLowerCase();
    return this.words.every(word => lower.includes(word));
  }
}
