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
  const { tokens, allocated } = pagedSplit(map);
  return allocated ? tokens / allocated : 0;
}

/** What a variant has come to at the end, in a sentence. */
function sumUp(track) {
  const { at, variant, history } = track;
  const numbers = [track.generatedAt(at), track.computedAt(at)].map(number => number.toLocaleString("en"));
  return `${variant.title}: ${numbers[0]} tokens generated and ${numbers[1]} computed in `
    + `${count(history.steps.steps.length, "step")}.`;
}
