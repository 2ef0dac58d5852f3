// What an event is about, and what it follows from: its chain of causes, back to the request that began it.
//
//     25 copied from 6 ← A.2 computes 1 token from position 74 on (step 31) ← 56 earlier steps of A.2 ← A.2 was forked ...

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
  if (after && after.cause >= 0) links.push({ seq: after.cause, words: `event ${after.cause}, which is not held here` });
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

/** Stand after an event, fetching what came before where the history begins later. */
async function goToEvent(viewer, seq) {
  while (seq < viewer.history.oldest && await viewer.loadOlder?.()) continue;
  viewer.goTo(seq);
}

/** A link to an event. */
function eventLink(viewer, seq, words) {
  const link = make("button", "event-link", { type: "button", title: `go to event ${seq}` }, words);
  link.addEventListener("click", () => goToEvent(viewer, seq));
  return link;
}

/** Links with arrows between them, from an event back to what began it. */
function chainLine(viewer, title, event) {
  const links = causesOf(event, viewer.history)
    .flatMap(({ seq, words }, i) => [...(i === 0 ? [] : [" ← "]), eventLink(viewer, seq, words)]);
  return make("p", "chain", {}, make("b", "", {}, `${title} `), ...links);
}
