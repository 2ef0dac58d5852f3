// What a viewer asks of a MemoryMap about blocks: who holds this one, how full it is, which tokens lie in it.

/** block -> [{view, index}] for every table entry that points to it. One pass over all tables, for a whole repaint. */
function holdersOfBlocks(map) {
  const holders = new Map();
  for (const view of Object.values(map.sequences)) {
    view.table.forEach((block, index) => {
      const entries = holders.get(block);
      if (entries) entries.push({ view, index });
      else holders.set(block, [{ view, index }]);
    });
  }
  return holders;
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
  const entries = holders.get(block) ?? [];
  const sealed = block in map.hash;
  let filled = sealed && entries.length === 0 ? map.block_size : 0;
  let after = filled;
  for (const { view, index } of entries) {
    filled = Math.max(filled, filledSlots(map, view, index));
    after = Math.max(after, filledAfterStep(map, view, index));
  }
  return { block, state: map.state[block], refs: map.ref_count[block], entries, filled, planned: after - filled, sealed };
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
