// What contiguous memory would need for the sequences that run: each alone in one piece, reserved before it starts.
// The same reservations as engine/contiguous.py, which tests hold equal to these.
//
//     slots    0              16             32
//     paged    |p p p p a a . .|b b b . . . . .|         p  a prompt that two samples share is there once
//     maximum  |p p p p a a + + + + + + + +|             the second sample repeats it, and does not fit any more
//
// How many tokens a sequence will have is known only at its end: it counts as if it used all of its max_tokens.

/** Name -> slots to reserve for a sequence of so many prompt and output tokens. */
const RESERVATIONS = {
  "maximum": (numPrompt, numOutput, maxModelLen) => maxModelLen,
  "power of two": (numPrompt, numOutput, maxModelLen) =>
    Math.min(maxModelLen, numPrompt + 2 ** (32 - Math.clz32(numOutput - 1))),
  "true length": (numPrompt, numOutput) => numPrompt + numOutput - 1, // the last token is never written
};

/** Slots that sequence `view` would reserve. */
function reservedSlots(view, reserve, maxModelLen) {
  const { num_prompt_tokens: numPrompt, max_tokens: maxTokens } = view;
  return reserve(numPrompt, Math.max(1, Math.min(maxTokens, maxModelLen - numPrompt)), maxModelLen);
}

function runningViews(map) {
  return Object.values(map.sequences).filter(view => view.status === "running");
}

/**
 * {fit, tokens, reserved}: how many of the views fit into the memory, one after another until the first that does not,
 * the slots that these reserve, and how many of them hold a token.
 */
function contiguousSplit(views, reserve, maxModelLen, numSlots) {
  const split = { fit: 0, tokens: 0, reserved: 0 };
  for (const view of views) {
    const slots = reservedSlots(view, reserve, maxModelLen);
    if (split.reserved + slots > numSlots) break;
    split.fit++;
    split.tokens += view.num_computed_tokens;
    split.reserved += slots;
  }
  return split;
}

/** Most tokens of a sequence; where the engine tells no limit, as many as the pool has slots. */
function longestSequence(header, map) {
  return header.config?.max_model_len ?? map.num_blocks * map.block_size;
}

if (typeof module !== "undefined") {
  module.exports = { RESERVATIONS, contiguousSplit, longestSequence, reservedSlots, runningViews };
}
