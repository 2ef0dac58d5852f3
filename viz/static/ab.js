// A/B: what two variants have come to, in a row of numbers over each.

/** Words -> what they count, of a track at the moment that its viewer shows. */
const COMPARED = {
  "used": ({ viewer }) => `${countStates(viewer.map).used} of ${viewer.map.num_blocks} blocks`,
  "filled": ({ viewer }) => `${Math.round(100 * filledShare(viewer.map))} % of their slots`,
  "running": ({ viewer }) => countStatuses(viewer.map).running,
  "waiting": ({ viewer }) => countStatuses(viewer.map).waiting + countStatuses(viewer.map).preempted,
  "finished": ({ viewer }) => viewer.map.totals.SequenceFinished ?? 0,
  "computed": track => track.computedAt(track.at).toLocaleString("en"),
  "generated": track => track.generatedAt(track.at).toLocaleString("en"),
  "step": ({ viewer }) => viewer.map.step,
};

function paintNumbers(track) {
  const figures = Object.entries(COMPARED).map(([words, of]) => [words, String(of(track))]);
  const signature = figures.join();
  if (track.numbers.dataset.shown === signature) return;
  track.numbers.dataset.shown = signature;
  track.numbers.replaceChildren(...figures.map(([words, value]) =>
    make("span", "", { "data-number": words }, `${words} `, make("b", "", {}, value))));
}

/** Share of the used blocks' slots that hold a token. */
function filledShare(map) {
  const filled = new Map();
  for (const view of Object.values(map.sequences)) {
    view.table.forEach((block, index) => {
      if (block >= 0) filled.set(block, Math.max(filled.get(block) ?? 0, filledSlots(map, view, index)));
    });
  }
  return filled.size ? sum([...filled.values()]) / (filled.size * map.block_size) : 0;
}
