// MemoryMap in the browser: events -> the whole memory picture. The same reducer as engine/memory_map.py, and its state
// is that one's JSON: tests/viz/test_memory_map_js.py holds the two equal after every event. A classic script, so that it
// runs in the page, in the worker, from file:// and in node.

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
      hash: {}, sealed_text: {}, last_touched: {}, sequences: {}, finished: [], scheduled: {}, pending_copies: [],
      blocked: null, halted_after: "", totals: {}, unknown_kinds: {},
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
    const taken = new Set();
    for (const view of Object.values(this.sequences)) if (view.status !== "finished") taken.add(view.lane);
    let lane = 0;
    while (taken.has(lane)) lane++;
    return lane;
  }
}

function holdBlock(map, e) {
  map.ref_count[e.block] = e.ref_count;
  map.state[e.block] = e.state;
  map.last_touched[e.block] = e.seq;
  map.sequences[e.sequence].table[e.index] = e.block;
}

function forgetContent(map, e) {
  delete map.hash[e.block];
  delete map.sealed_text[e.block];
}

function startRunning(map, e) {
  const view = map.sequences[e.sequence];
  view.status = "running";
  view.num_computed_tokens = view.num_cached_tokens = e.num_computed_tokens;
  view.last_event = e.seq;
}

function endStep(map) {
  Object.assign(map, { scheduled: {}, pending_copies: [] });
}

const REDUCERS = {
  RequestArrived(map, e) {
    map.forgetFinished(e.sequence);
    const lane = map.freeLane();
    map.sequences[e.sequence] = {
      sequence: e.sequence, request: e.request, lane, status: "waiting",
      token_ids: [...e.prompt_token_ids], texts: [...(e.prompt_texts ?? [])],
      num_prompt_tokens: e.prompt_token_ids.length, max_tokens: e.max_tokens ?? 0,
      num_computed_tokens: 0, num_cached_tokens: 0, table: [], parent: "", reason: "", last_event: e.seq,
    };
  },
  SequenceForked(map, e) {
    map.forgetFinished(e.child);
    const parent = map.sequences[e.parent];
    const lane = map.freeLane();
    map.sequences[e.child] = {
      ...parent, sequence: e.child, request: e.request, lane, status: e.status ?? "running",
      token_ids: [...parent.token_ids], texts: [...parent.texts], table: [], parent: e.parent, reason: "",
      num_computed_tokens: (e.status ?? "running") === "running" ? parent.num_computed_tokens : 0, last_event: e.seq,
    };
  },
  SequenceAdmitted: startRunning,
  SequenceResumed: startRunning,
  SequenceScheduled(map, e) {
    map.scheduled[e.sequence] = e.num_tokens;
    map.sequences[e.sequence].last_event = e.seq;
  },
  BlockAllocated: holdBlock,
  BlockShared: holdBlock,
  BlockReleased(map, e) {
    map.ref_count[e.block] = e.ref_count;
    map.state[e.block] = e.state;
    map.last_touched[e.block] = e.seq;
    const table = map.sequences[e.sequence].table;
    if (table[e.index] === e.block) table.length = e.index;
  },
  BlockSealed(map, e) {
    map.hash[e.block] = e.hash;
    const start = e.index * map.block_size;
    map.sealed_text[e.block] = map.sequences[e.sequence].texts.slice(start, start + map.block_size);
    map.last_touched[e.block] = e.seq;
  },
  BlockUnsealed: forgetContent,
  BlockEvicted(map, e) {
    map.state[e.block] = e.state;
    map.last_touched[e.block] = e.seq;
    forgetContent(map, e);
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
    map.blocked = !e.blocked ? null : {
      sequence: e.blocked, why: e.why, needs: e.needs ?? 0, free: e.free ?? 0,
      watermark: e.watermark ?? 0, promised: e.promised ?? 0,
    };
  },
  StepLaunched(map) { map.pending_copies = []; },
  TokensWritten(map, e) {
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
  StepCommitted: endStep,
  StepFailed: endStep,
  EngineHalted(map, e) { map.halted_after = e.after; },
  EngineContinued(map) { map.halted_after = ""; },
  RequestRejected() {}, RequestAborted() {}, PrefixLookup() {}, BlocksSwappedIn() {}, // known, and change nothing
};

if (typeof module !== "undefined") module.exports = { MemoryMap };
