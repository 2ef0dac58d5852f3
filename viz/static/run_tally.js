// RunTally: a run's figures after each event, for the counters. A pure reducer: a few numbers change with an event,
// nothing is counted anew. `pool` and `held` are what engine/waste.py measures, the rest what engine/run_stats.py does,
// but for times: they leave out what the engine was halted for.
//
//     filled    block 3 -> 4 slots     block 7 -> 2 slots        blocks that somebody holds: used is their number
//     held      6 tokens in 8 slots                              each shared one counted once

class RunTally {
  /** `base` is the picture before the first event. */
  constructor(header, base) {
    this.size = base.block_size;
    this.numSlots = base.num_blocks * base.block_size;
    this.longest = longestSequence(header, base);
    this.filled = new Map(); // used block -> slots that hold a token
    this.onHost = new Map(); // the same of host blocks
    this.held = 0;
    this.cached = base.state.filter(state => state === "cached").length;
    this.haltedAt = base.halted_after === "" ? null : 0; // when the halt began in which the engine is
    this.halted = 0; // ns of the halts that are over
    this.arrived = new Map(); // sequence without a token yet -> when its request arrived
    this.lastToken = new Map(); // sequence -> {at, step} of its newest token
    this.begin();
    for (const view of Object.values(base.sequences)) {
      view.table.forEach((block, index) => {
        const slots = filledSlots(base, view, index);
        if (block < 0) this.onHost.set(-1 - block, slots);
        else this.fill(block, Math.max(slots, this.filled.get(block) ?? 0));
      });
    }
  }

  /** The time of an event on a clock that stands still while the engine is halted. */
  clock({ t }) {
    return (this.haltedAt ?? t) - this.halted;
  }

  /** A new step: what is added up in one begins at nothing. Returns what the events to come add to. */
  begin() {
    return this.flow = { lookedUp: 0, hit: 0, generated: 0, firsts: 0, firstNs: 0, gaps: 0, gapNs: 0 };
  }

  fill(block, slots) {
    this.held += slots - (this.filled.get(block) ?? 0);
    this.filled.set(block, slots);
  }

  /** Count one event; `map` is the picture after it. */
  note(event, map) {
    if (Object.hasOwn(TALLIES, event.kind)) TALLIES[event.kind](this, event, map);
  }

  /** What the memory holds now, beside what contiguous memory would: {used, cached, held, running, wasted}. */
  memory(map) {
    const running = runningViews(map);
    const wasted = Object.values(RESERVATIONS).map(reserve => {
      const { tokens, reserved } = contiguousSplit(running, reserve, this.longest, this.numSlots);
      return reserved ? 1 - tokens / reserved : null;
    });
    const used = this.filled.size;
    return { used, cached: this.cached, held: this.held, running: running.length,
      wasted: [used ? 1 - this.held / (used * this.size) : null, ...wasted] };
  }
}

/** Kind of event -> what it changes. */
const TALLIES = {
  RequestArrived(tally, e) { tally.arrived.set(e.sequence, tally.clock(e)); },
  SequenceForked(tally, e) {
    if (tally.lastToken.has(e.parent)) tally.lastToken.set(e.child, tally.lastToken.get(e.parent));
  },
  PrefixLookup(tally, e) {
    tally.flow.lookedUp += e.num_tokens;
    tally.flow.hit += e.hit_tokens;
  },
  BlockAllocated(tally, e) { tally.fill(e.block, 0); },
  BlockShared(tally, e) {
    if (tally.filled.has(e.block)) return;
    tally.cached--; // so it is full
    tally.fill(e.block, tally.size);
  },
  BlockReleased(tally, e) {
    if (e.ref_count > 0) return;
    tally.held -= tally.filled.get(e.block);
    tally.filled.delete(e.block);
    if (e.state === "cached") tally.cached++;
  },
  BlockEvicted(tally) { tally.cached--; },
  BlocksSwappedOut(tally, e) {
    e.blocks.forEach((block, i) => tally.onHost.set(e.host_blocks[i], tally.filled.get(block)));
  },
  BlocksSwappedIn(tally, e) {
    e.blocks.forEach((block, i) => {
      tally.fill(block, tally.onHost.get(e.host_blocks[i]));
      tally.onHost.delete(e.host_blocks[i]);
    });
  },
  TokensWritten(tally, e, map) {
    e.sequences.forEach((name, i) => {
      const { table } = map.sequences[name];
      const end = e.starts[i] + e.counts[i];
      for (let index = Math.floor(e.starts[i] / tally.size); index * tally.size < end; index++) {
        tally.fill(table[index], Math.min(tally.size, end - index * tally.size));
      }
    });
  },
  TokensGenerated(tally, e) {
    const at = tally.clock(e);
    tally.flow.generated += e.sequences.length;
    for (const name of e.sequences) {
      const last = tally.lastToken.get(name);
      if (tally.arrived.has(name)) {
        tally.flow.firsts++;
        tally.flow.firstNs += at - tally.arrived.get(name);
        tally.arrived.delete(name);
      } else if (last && last.step < e.step) { // else it was forked in this step, with its first token
        tally.flow.gaps++;
        tally.flow.gapNs += at - last.at;
      }
      tally.lastToken.set(name, { at, step: e.step });
    }
  },
  SequenceFinished(tally, e) {
    tally.arrived.delete(e.sequence);
    tally.lastToken.delete(e.sequence);
  },
  EngineHalted(tally, e) { tally.haltedAt ??= e.t; },
  EngineContinued(tally, e) {
    if (tally.haltedAt === null) return;
    tally.halted += e.t - tally.haltedAt;
    tally.haltedAt = null;
  },
};

if (typeof module !== "undefined") module.exports = { RunTally };
