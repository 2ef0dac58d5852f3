// What a sequence is doing, in a few words, and why it does not run now.

const FINISHED = {
  stop: "finished: end of text", length: "finished: token limit", abort: "aborted",
  out_of_blocks: "ended: pool too small", error: "ended: its step failed", beam: "beam: dropped",
};

function statusWords(view, map) {
  if (view.status === "finished") return FINISHED[view.reason] ?? `finished: ${view.reason}`;
  if (view.status !== "running") return view.status;
  if (view.num_computed_tokens < view.num_prompt_tokens) {
    return `prompt: ${view.num_computed_tokens} of ${view.num_prompt_tokens} computed`;
  }
  return view.parent ? `↳ fork of ${view.parent} at ${view.forked_at}` : "";
}

/** Why a sequence does not run now, in numbers, and as of which step. */
function whyWords(view, { map, history, header }) {
  if (view.status !== "waiting" && view.status !== "preempted") return "";
  const blocked = map.blocked;
  if (!blocked) return "waits for the next step";
  if (blocked.sequence !== view.sequence) {
    const together = map.sequences[blocked.sequence]?.request === view.request;
    return `waits ${together ? "with" : "behind"} ${blocked.sequence}`;
  }
  const { running } = countStatuses(map);
  const { max_num_seqs, max_num_batched_tokens } = header.config;
  const reasons = {
    waits_for_blocks: blocksWanted(blocked),
    waits_for_sequence_slot: `${running} sequences run, max_num_seqs is ${max_num_seqs}`,
    waits_for_token_budget: `the step is full: max_num_batched_tokens is ${max_num_batched_tokens}`,
    waits_after_preemption: "nobody is admitted in a step that preempted",
    waits_for_batch: "static batching: the batch before it has not ended",
  };
  const planned = history.lastOfKind("StepPlanned", map.seq);
  return `why not now? ${reasons[blocked.why] ?? blocked.why.replaceAll("_", " ")}`
    + (planned ? ` (so it was in step ${planned.step})` : "");
}

/** "needs 1 block; 1 is free, but 1 must stay free (watermark)" */
function blocksWanted({ needs, free, watermark, promised }) {
  const is = number => `${number} ${number === 1 ? "is" : "are"}`;
  const kept = [...(watermark ? [`${watermark} must stay free (watermark)`] : []),
    ...(promised ? [`${is(promised)} promised to others`] : [])].join(" and ");
  return `needs ${count(needs, "block")}; ${is(free)} free${kept && `, ${free < needs ? "and" : "but"} ${kept}`}`;
}
