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

/** Why a sequence does not run now, in numbers. */
function whyWords(view, map, config) {
  if (view.status !== "waiting" && view.status !== "preempted") return "";
  const blocked = map.blocked;
  if (!blocked) return "waits for the next step";
  if (blocked.sequence !== view.sequence) {
    const together = map.sequences[blocked.sequence]?.request === view.request;
    return `waits ${together ? "with" : "behind"} ${blocked.sequence}`;
  }
  const { running } = countStatuses(map);
  const promised = blocked.promised ? `, ${blocked.promised} promised to others` : "";
  const reasons = {
    waits_for_blocks: `why not now? needs ${count(blocked.needs, "block")}, ${blocked.free} free, watermark `
      + `${blocked.watermark}${promised}`,
    waits_for_sequence_slot: `why not now? ${running} sequences run, max_num_seqs is ${config.max_num_seqs}`,
    waits_for_token_budget: `why not now? the step is full: max_num_batched_tokens is ${config.max_num_batched_tokens}`,
    waits_after_preemption: "why not now? nobody is admitted in a step that preempted",
    waits_for_batch: "why not now? static batching: the batch before it has not ended",
  };
  return reasons[blocked.why] ?? `why not now? ${blocked.why.replaceAll("_", " ")}`;
}
