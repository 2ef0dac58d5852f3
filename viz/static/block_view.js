// What a viewer asks of a MemoryMap about blocks: who holds this one, how full it is, which tokens lie in it.

/**
 * Every table entry by the block that it points to, made in one pass over all tables for a whole repaint. A pool may
 * have 40,000 blocks and an animation 60 frames a second, so the entries are chains of numbers and become objects only
 * when they are asked for:
 *
 *     block      3                     first[3] = 1
 *     entry      1  ->  2  -> end      view and index of each; next[1] = 2, next[2] = 0
 */
class Holders {
  constructor(map) {
    this.views = Object.values(map.sequences);
    const total = this.views.reduce((sum, view) => sum + view.table.length, 1);
    this.first = new Uint32Array(map.num_blocks);
    this.next = new Uint32Array(total);
    this.viewOf = new Uint32Array(total);
    this.indexOf = new Uint32Array(total);
    this.looks = new Int32Array(map.num_blocks); // changes whenever holders or fill do
    this.readIn = new Int32Array(map.num_blocks).fill(-1); // the last step in which a holder read the block
    this.host = new Map(); // host block -> [{view, index}]
    this.hostLooks = 0; // changes whenever the host pool's does
    this.fill(map);
  }

  fill(map) {
    const last = new Uint32Array(map.num_blocks);
    let entry = 0;
    this.views.forEach((view, number) => {
      const { table } = view;
      const owner = [...view.sequence].reduce((hash, letter) => mix(hash, letter.codePointAt(0)), view.lane);
      for (let index = 0; index < table.length; index++) {
        const block = table[index];
        if (block < 0) {
          this.host.set(-1 - block, [{ view, index }]);
          this.hostLooks = mix(mix(this.hostLooks, block), owner);
          continue;
        }
        entry++;
        if (last[block]) this.next[last[block]] = entry;
        else this.first[block] = entry;
        last[block] = entry;
        this.viewOf[entry] = number;
        this.indexOf[entry] = index;
        const fill = filledSlots(map, view, index) * 1024 + filledAfterStep(map, view, index);
        this.looks[block] = mix(mix(this.looks[block], owner), fill);
        if (view.last_step > this.readIn[block]) this.readIn[block] = view.last_step;
      }
    });
  }

  /** [{view, index}] of the table entries that point to `block`, in the order of the tables. */
  get(block) {
    const entries = [];
    for (let entry = this.first[block]; entry; entry = this.next[entry]) {
      entries.push({ view: this.views[this.viewOf[entry]], index: this.indexOf[entry] });
    }
    return entries;
  }
}

function holdersOfBlocks(map) {
  return new Holders(map);
}

/** Fold one more number into a hash. */
function mix(hash, number) {
  return Math.imul(hash ^ number, 0x01000193) ^ (hash >>> 15);
}

/** How many slots of entry `index` of a sequence's table hold a token's keys and values. */
function filledSlots(map, view, index) {
  return Math.max(0, Math.min(map.block_size, view.num_computed_tokens - index * map.block_size));
}

/** How many slots of that entry are filled once the running step has launched. */
function filledAfterStep(map, view, index) {
  const tokens = view.num_computed_tokens + (map.scheduled[view.sequence] ?? 0);
  return Math.max(0, Math.min(map.block_size, tokens - index * map.block_size));
}

/** One block as a viewer shows it. `planned` counts the slots that this step has still to fill. */
function describeBlock(map, block, holders) {
  const entries = holders.get(block);
  const sealed = block in map.hash;
  let filled = sealed && entries.length === 0 ? map.block_size : 0;
  let after = filled;
  for (const { view, index } of entries) {
    filled = Math.max(filled, filledSlots(map, view, index));
    after = Math.max(after, filledAfterStep(map, view, index));
  }
  const [state, refs] = [map.state[block], map.ref_count[block]];
  return { block, state, refs, entries, filled, planned: after - filled, sealed };
}

/** A block of the host pool: what a swapped-out sequence keeps there, or nothing. */
function describeHostBlock(map, hostBlock, holders) {
  const entries = holders.host.get(hostBlock) ?? [];
  const filled = entries.length ? filledSlots(map, entries[0].view, entries[0].index) : 0;
  const state = entries.length ? "used" : "blank";
  return { block: `h${hostBlock}`, state, refs: entries.length, entries, filled, planned: 0, sealed: false };
}

/** How many steps ago a block was allocated, or last read; null where neither is so. */
function stepsSince(map, block, holders) {
  const since = step => (step === undefined || step < 0 ? null : map.step - step);
  return {
    allocated: since(map.allocated_in[block]),
    read: since(Math.max(holders.readIn[block], map.read_in[block] ?? -1)),
  };
}

/** The text of the tokens that lie in a block, piece by piece; known where a table or a seal tells it. */
function textsInBlock(map, described) {
  if (described.entries.length === 0) return map.sealed_text[described.block] ?? [];
  const { view, index } = described.entries[0];
  const start = index * map.block_size;
  return view.texts.slice(start, start + described.filled + described.planned);
}

function countStates(map) {
  const counts = { used: 0, cached: 0, blank: 0 };
  for (const state of map.state) counts[state]++;
  return counts;
}

function countStatuses(map) {
  const counts = { waiting: 0, running: 0, preempted: 0, finished: 0 };
  for (const view of Object.values(map.sequences)) counts[view.status]++;
  return counts;
}
