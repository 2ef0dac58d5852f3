// MemoryMap in the browser: events -> the whole memory picture. The same reducer as engine/memory_map.py, and its
// state is that one's JSON: tests/viz/test_memory_map_js.py holds the two equal after every event. A classic script,
// so that it runs in the page, in the worker, from file:// and in node.

const KEEP_FINISHED = 64;

class MemoryMap {
  /** `state` is a MemoryMap as JSON (a snapshot). The map takes it over and changes it. */
  constructor(state) {
    Object.assign(this, state);
  }

  /** The picture of a pool before anything happened. */
  static empty(numBlocks, blockSize) {
    return new MemoryMap({
      num_blocks: numBlocks, block_size: blockSize, seq: -1, step: 0, phase: "idle",
      ref_count: Array(numBlocks).fill(0), state: Array(numBlocks).fill("blank"),
      hash: {}, sealed_text: {}, last_touched: {}, allocated_in: {}, read_in: {}, sequences: {}, finished: [],
      scheduled: {}, pending_copies: [], blocked: null, halted_after: "", totals: {}, unknown_kinds: {},
    });
  }

  /** Take the picture from before `event` to after it. Throws if the event does not follow the last one. */
  apply(event) {
    if (event.seq !== this.seq + 1) throw new Error(`event ${event.seq} does not follow event ${this.seq}`);
    this.seq = event.seq;
    this.step = event.step;
    this.phase = event.phase;
    this.totals[event.kind] = (this.totals[event.kind] ?? 0) + 1;
    if (Object.hasOwn(REDUCERS, event.kind)) REDUCERS[event.kind](this, event);
    else this.unknown_kinds[event.kind] = (this.unknown_kinds[event.kind] ?? 0) + 1;
  }

  /** A name may be used again once its request has ended. */
  forgetFinished(name) {
    if (Object.hasOwn(this.sequences, name)) this.finished.splice(this.finished.indexOf(name), 1);
  }

  /** The colour number of a new sequence: the lowest that no unfinished sequence holds. */
  freeLane() {
    const alive = Object.values(this.sequences).filter(view => view.status !== "finished");
    const taken = new Set(alive.map(view => view.lane));
    let lane = 0;
    while (taken.has(lane)) lane++;
    return lane;
  }
}

/** What an event says of its block; some kinds leave the references or the state as they are. */
function touchBlock(map, e) {
  if (!(e.block in map.state)) throw new Error(`there is no block ${e.block}`);
  map.ref_count[e.block] = e.ref_count ?? map.ref_count[e.block];
  map.state[e.block] = e.state ?? map.state[e.block];
  map.last_touched[e.block] = e.seq;
}

function holdBlock(map, e) {
  touchBlock(map, e);
  map.sequences[e.sequence].table[e.index] = e.block;
}

const forget = (block, ...known) => known.forEach(each => delete each[block]);

function startRunning(map, e) {
  const computed = e.num_computed_tokens;
  Object.assign(map.sequences[e.sequence],
    { status: "running", num_computed_tokens: computed, num_cached_tokens: computed, last_event: e.seq });
}

const endStep = map => Object.assign(map, { scheduled: {}, pending_copies: [] });

const REDUCERS = {
  RequestArrived(map, e) {
    map.forgetFinished(e.sequence);
    const lane = map.freeLane();
    map.sequences[e.sequence] = {
      sequence: e.sequence, request: e.request, lane, status: "waiting",
      token_ids: [...e.prompt_token_ids], texts: [...(e.prompt_texts ?? [])],
      num_prompt_tokens: e.prompt_token_ids.length, max_tokens: e.max_tokens ?? 0, num_computed_tokens: 0,
      num_cached_tokens: 0, table: [], parent: "", forked_at: 0, reason: "", last_event: e.seq, last_step: -1,
    };
  },
  SequenceForked(map, e) {
    map.forgetFinished(e.child);
    const parent = map.sequences[e.parent];
    map.sequences[e.child] = {
      ...parent, sequence: e.child, request: e.request, lane: map.freeLane(), status: e.status ?? "running",
      token_ids: [...parent.token_ids], texts: [...parent.texts], table: [],
      parent: e.parent, forked_at: parent.token_ids.length, reason: "",
      num_computed_tokens: (e.status ?? "running") === "running" ? parent.num_computed_tokens : 0, last_event: e.seq,
    };
  },
  SequenceAdmitted: startRunning,
  SequenceResumed: startRunning,
  SequenceScheduled(map, e) {
    map.scheduled[e.sequence] = e.num_tokens;
    Object.assign(map.sequences[e.sequence], { last_event: e.seq, last_step: e.step });
  },
  BlockAllocated(map, e) {
    map.allocated_in[e.block] = e.step;
    holdBlock(map, e);
  },
  BlockShared: holdBlock,
  BlockReleased(map, e) {
    touchBlock(map, e);
    const { table, last_step } = map.sequences[e.sequence];
    map.read_in[e.block] = Math.max(map.read_in[e.block] ?? -1, last_step);
    if (e.state === "blank") forget(e.block, map.hash, map.sealed_text, map.allocated_in, map.read_in);
    if (table[e.index] === e.block) table.length = e.index;
  },
  BlockSealed(map, e) {
    map.hash[e.block] = e.hash;
    const start = e.index * map.block_size;
    map.sealed_text[e.block] = map.sequences[e.sequence].texts.slice(start, start + map.block_size);
    touchBlock(map, e);
  },
  BlockUnsealed(map, e) { forget(e.block, map.hash, map.sealed_text); },
  BlockEvicted(map, e) {
    touchBlock(map, e);
    forget(e.block, map.hash, map.sealed_text, map.allocated_in, map.read_in);
  },
  BlockCopied(map, e) { map.pending_copies.push([e.source, e.destination]); },
  RequestPreempted(map, e) {
    e.sequences.forEach((name, i) => {
      const computed = e.num_computed_tokens?.[i] ?? 0;
      Object.assign(map.sequences[name], { status: "preempted", num_computed_tokens: computed, last_event: e.seq });
    });
  },
  BlocksSwappedOut(map, e) {
    e.indices.forEach((index, i) => { map.sequences[e.sequence].table[index] = -1 - e.host_blocks[i]; });
  },
  HostBlocksFreed(map, e) { map.sequences[e.sequence].table = []; },
  StepPlanned(map, e) {
    const { blocked: sequence, why, needs = 0, free = 0, watermark = 0, promised = 0 } = e;
    map.blocked = sequence ? { sequence, why, needs, free, watermark, promised } : null;
  },
  StepLaunched(map) { map.pending_copies = []; },
  TokensWritten(map, e) {
    map.scheduled = {}; // all of them are computed now
    e.sequences.forEach((name, i) => { map.sequences[name].num_computed_tokens = e.starts[i] + e.counts[i]; });
  },
  TokensGenerated(map, e) {
    e.sequences.forEach((name, i) => {
      const view = map.sequences[name];
      view.token_ids.push(e.token_ids[i]);
      view.texts.push(e.texts[i]);
      view.last_event = e.seq;
    });
  },
  SequenceFinished(map, e) {
    Object.assign(map.sequences[e.sequence], { status: "finished", reason: e.reason, last_event: e.seq });
    map.finished.push(e.sequence);
    if (map.finished.length > KEEP_FINISHED) delete map.sequences[map.finished.shift()];
  },
  StepCommitted: endStep, StepFailed: endStep,
  EngineHalted(map, e) { map.halted_after = e.after; },
  EngineContinued(map) { map.halted_after = ""; },
  RequestRejected() {}, RequestAborted() {}, PrefixLookup() {}, KernelTraced() {}, BlocksSwappedIn() {}, // no-ops
};

if (typeof module !== "undefined") module.exports = { MemoryMap };
