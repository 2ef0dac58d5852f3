// What an event is about, and what it follows from: its chain of causes, back to the request that began it.
//
//     25 copied from 6 ← A.2 computes 1 token from position 74 on (step 31) ← 56 earlier steps of A.2 ← ...

const MOST_CAUSES = 4096;

/** The blocks that an event names. */
function blocksOf(event) {
  return [event.block, event.source, event.destination, event.blocks].flat().filter(block => block !== undefined);
}

/** The sequences that an event names. */
function sequencesOf(event) {
  return [event.sequence, event.child, event.parent, event.for_sequence, event.sequences].flat()
    .filter(name => name !== undefined);
}

/** What an event follows from, itself first: [{seq, words}]; steps in a row of one sequence become one link. */
function causesOf(event, history) {
  const links = [];
  const earlier = []; // steps of one sequence, newest first, that are not told one by one
  const tell = () => {
    if (earlier.length === 0) return;
    const { seq, sequence } = earlier.at(-1);
    links.push({ seq, words: `${count(earlier.length, "earlier step")} of ${sequence}` });
    earlier.length = 0;
  };
  let after = null;
  for (let walked = 0; event && walked < MOST_CAUSES; walked++) {
    const inRow = event.kind === "SequenceScheduled" && after?.kind === event.kind && after.sequence === event.sequence;
    if (inRow) {
      earlier.push(event);
    } else {
      tell();
      links.push({ seq: event.seq, words: linkWords(event) });
    }
    after = event;
    event = history.event(event.cause);
  }
  tell();
  const before = after?.cause ?? -1;
  if (before >= 0) links.push({ seq: before, words: `event ${before}, which is not held here` });
  return links;
}

function linkWords(event) {
  return inShort(event) + (event.kind === "SequenceScheduled" ? ` (step ${event.step})` : "");
}

/** The event that gave a block what it holds: its copy, its allocation; null if it is not held. */
function originOf(block, map, history) {
  const allocatedIn = map.allocated_in[block];
  const found = history.steps.steps.findLast(step => step.step === allocatedIn && step.first <= map.seq);
  if (allocatedIn === undefined || !found) return null;
  const events = history.slice(found.first, Math.min(found.last, map.seq) + 1);
  return events.findLast(event => (event.kind === "BlockAllocated" && event.block === block)
    || (event.kind === "BlockCopied" && event.destination === block)) ?? null;
}

/** How each holder of a block came by it, as far as that is held: [sequence, the event that put it into its table]. */
function takenBy(block, entries, origin, map, history) {
  const taken = new Map();
  const wanted = new Set(entries.map(({ view }) => view.sequence));
  for (let seq = map.seq + 1; wanted.size > 0;) {
    seq = history.previous("BlockShared", seq);
    if (!(seq > (origin?.seq ?? -1))) break; // no more, or of what the block held before
    const event = history.event(seq);
    if (event.block === block && wanted.delete(event.sequence)) taken.set(event.sequence, event);
  }
  if (wanted.has(origin?.sequence)) taken.set(origin.sequence, origin);
  return [...taken].sort(([, one], [, other]) => one.seq - other.seq);
}

/** The newest event that changed a block, or copied from it or to it in the step that goes on. */
function lastChangeOf(block, map, history) {
  const touched = history.event(map.last_touched[block]);
  if (!map.pending_copies.some(pair => pair.includes(block))) return touched;
  const step = history.steps.steps[history.steps.indexOf(map.seq)];
  const copied = history.slice(step?.first ?? map.seq, map.seq + 1).findLast(event => event.kind === "BlockCopied"
    && (event.source === block || event.destination === block));
  return copied?.seq > (touched?.seq ?? -1) ? copied : touched;
}

const SOON = 8; // events: of a copy or of a release nothing is longer under way

/** The releases that are due of a block whose references are more than the table entries that point to it. */
function comingReleases(block, { refs, entries }, map, history) {
  if (refs <= entries.length) return [];
  return history.slice(map.seq + 1, map.seq + 1 + SOON)
    .filter(event => event.kind === "BlockReleased" && event.block === block)
    .slice(0, refs - entries.length);
}

/** Stand after an event, fetching what came before where the history begins later. */
async function goToEvent(viewer, seq) {
  while (seq < viewer.history.oldest && await viewer.loadOlder?.()) continue;
  viewer.goTo(seq);
}

/** A link to an event. */
function eventLink(viewer, seq, words) {
  return makeButton(words, () => goToEvent(viewer, seq), { class: "event-link", title: `go to event ${seq}` });
}

/** Links with arrows between them, from an event back to what began it. */
function chainLine(viewer, title, event) {
  const links = causesOf(event, viewer.history)
    .flatMap(({ seq, words }, i) => [...(i === 0 ? [] : [" ← "]), eventLink(viewer, seq, words)]);
  return make("p", "chain", {}, make("b", "", {}, `${title} `), ...links);
}
