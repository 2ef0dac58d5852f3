// Each event as one plain sentence, with its reason and the line of the engine that emits it.

const CONTINUED = { user_step: "The engine takes one step.", user_phase: "The engine goes on by a phase." };

const SENTENCES = {
  RequestArrived: (e, map) => ["Arrived", `${e.request} wants ${count(e.max_tokens, "token")} after a prompt of `
    + `${e.prompt_token_ids.length}, which needs ${count(blocksFor(e.prompt_token_ids.length, map), "block")}. `
    + "It waits to be admitted."],
  RequestRejected: e => ["Refused", e.message],
  RequestAborted: e => ["Aborted", `${e.request} was withdrawn by its user; its blocks are free for others.`],
  PrefixLookup: e => e.hit_blocks === 0 ? ["Prefix miss", `The cache holds nothing of ${e.sequence}'s `
    + `${count(e.num_tokens, "token")}: all are computed.`]
    : ["Prefix hit", `The first ${e.hit_tokens} of ${e.sequence}'s ${e.num_tokens} tokens lie in `
    + `${count(e.hit_blocks, "cached block")}: ${e.sequence} points there, and computes only the other `
    + `${e.num_tokens - e.hit_tokens}.`],
  SequenceAdmitted: e => ["Admitted", `${e.sequence} runs from now on: its blocks fit beside those of the others.`
    + (e.num_computed_tokens ? ` ${e.num_computed_tokens} of its tokens come from the prefix cache.` : "")],
  SequenceResumed: e => ["Resumed", `${e.sequence} runs again after its preemption. `
    + (e.num_computed_tokens
      ? `${count(e.num_computed_tokens, "token")} survived; the rest is computed anew.`
      : "Nothing of it survived, so all its tokens are computed anew.")],
  SequenceForked: (e, map) => ["Fork", `${e.child} continues ${e.parent} and shares its `
    + `${blocksHeld(map.sequences[e.parent])}; nothing is copied until one of them writes.`],
  SequenceScheduled: e => ["Scheduled", `${e.sequence} computes ${count(e.num_tokens, "token")} from position `
    + `${e.start} on.`],
  BlockAllocated: (e, map) => ["New block", `${e.sequence} needs room for position ${e.index * map.block_size}: `
    + `block ${e.block} becomes its logical block ${e.index}.`],
  BlockShared: e => ["Shared", `Block ${e.block} already holds the right tokens: it becomes logical block ${e.index} `
    + `of ${e.sequence} too (${e.ref_count} tables hold it).`],
  BlockReleased: e => ["Released", `${e.sequence} lets go of block ${e.block}; `
    + (e.ref_count ? `${e.ref_count} other${e.ref_count === 1 ? " holds" : "s hold"} it still.`
      : `it is ${e.state} now.`)],
  BlockSealed: e => ["Sealed", `Block ${e.block} is full: whoever begins with the same tokens finds it by its hash.`],
  BlockUnsealed: e => ["Unsealed", e.why === "cache_reset" ? `Block ${e.block} cannot be found by its content any more.`
    : `Block ${e.block} was to be filled by a step that failed; nobody may find it.`],
  BlockEvicted: e => ["Eviction", e.why === "cache_reset"
    ? `Cached block ${e.block} was forgotten: the cache was reset.`
    : `Cached block ${e.block} gives up its tokens: no blank block was left, and `
    + (e.why === "least_recently_used" ? "of the cached ones it was not used for the longest time."
      : "the policy chose it.")],
  BlockCopied: (e, map, state) => ["Copy-on-write", `${e.sequence} writes${atPosition(e, state)} into block `
    + `${e.source}, which ${othersHolding(e, map, state)}. So the engine copies block ${e.source} to ${e.destination} first and `
    + `points ${e.sequence} there.`],
  RequestPreempted: e => ["Preemption", `${e.request} gives its blocks back and waits: ${e.for_sequence} needs `
    + `${count(e.needs, "block")} and ${e.free} ${e.free === 1 ? "is" : "are"} free. What ${e.request} had computed `
    + (e.mode === "swap" ? "moves to the host pool." : "will be computed again.")],
  BlocksSwappedOut: e => ["Swapped out", `${count(e.blocks.length, "block")} of ${e.sequence} that nobody else holds `
    + "move to the host pool; its table points there until it runs again."],
  BlocksSwappedIn: e => ["Swapped in", `${count(e.blocks.length, "block")} of ${e.sequence} come back from the host `
    + "pool: nothing has to be computed again."],
  HostBlocksFreed: e => ["Released",
    `${e.sequence} gives up ${count(e.host_blocks.length, "block")} of the host pool.`],
  StepPlanned: e => [`Step ${e.step}`, `${count(e.sequences.length, "sequence")} `
    + `${e.sequences.length === 1 ? "computes" : "compute"} ${count(sum(e.num_tokens), "token")} of at most `
    + `${e.budget}.` + (e.blocked ? ` ${count(e.num_waiting, "request")} ${e.num_waiting === 1 ? "waits" : "wait"}.` : "")],
  StepLaunched: e => ["Launched", `The model computes ${count(e.num_tokens, "token")} on the ${e.kernel} kernel.`],
  KernelTraced: e => ["Kernel traced", `In layer ${e.layer}, for KV head ${e.kv_head} of ${e.sequence}, the kernel `
    + `${e.taken_from === "interpreter" ? "really loaded" : "reads, by the block table,"} `
    + `${count(e.blocks.length, "block")}.`],
  TokensWritten: e => ["Written", `Keys and values of ${count(sum(e.counts), "token")} lie in their slots.`],
  TokensGenerated: e => ["Generated", `${count(e.sequences.length, "new token")}.`],
  SequenceFinished: (e, map) => ["Finished", `${e.sequence} ends ${finishWords(e, map)}. Its blocks are free again; `
    + "the full ones stay cached until their room is needed."],
  StepCommitted: e => ["Step over", `It took ${((e.plan_ns + e.launch_ns + e.commit_ns) / 1e6).toFixed(0)} ms.`],
  StepFailed: e => ["Step failed", `${e.error}. Its sequences end; all others go on.`],
  EngineHalted: e => ["Halted", `The engine stands still ${haltPlace(e.after, e)}${e.why === "user_breakpoint"
    ? ", where a breakpoint matched" : ""}; what you send waits.`],
  EngineContinued: e => ["Continued", CONTINUED[e.why] ?? "The engine runs on."],
};

/** {title, text} of one event. */
function sentenceOf(event, state) {
  const write = SENTENCES[event.kind];
  const [title, text] = write ? write(event, state.map, state) : [event.kind, "This page does not know such an event."];
  return { title, text };
}

/** Why, and what it follows from: "shared block ← A.2 computes 1 token from position 74 on". */
function reasonOf(event, state) {
  const allRun = event.kind === "StepPlanned" && event.why === "nothing_waits";
  const parts = [allRun ? "nothing waits, so all that run are in it" : event.why.replaceAll("_", " ")];
  let cause = event.kind === "StepPlanned" ? undefined : state.event(event.cause);
  while (cause && parts.length < 4) {
    parts.push(inShort(cause));
    cause = cause.kind === "TokensGenerated" ? undefined : state.event(cause.cause);
  }
  return parts.join(" ← ");
}

const SHORT = {
  BlockAllocated: e => `block ${e.block} was given to ${e.sequence}`,
  BlockShared: e => `block ${e.block} was shared with ${e.sequence}`,
  BlockReleased: e => `${e.sequence} let go of block ${e.block}`,
  BlockSealed: e => `block ${e.block} was sealed`,
  BlockUnsealed: e => `block ${e.block} was unsealed`,
  BlockEvicted: e => `block ${e.block} was evicted`,
  BlocksSwappedOut: e => `${e.sequence} was swapped out`,
  BlocksSwappedIn: e => `${e.sequence} was swapped in`,
  RequestAborted: e => `${e.request} was withdrawn`,
  RequestArrived: e => `${e.request} arrived`,
  PrefixLookup: e =>
    `the prefix cache holds ${e.hit_blocks ? count(e.hit_blocks, "block") : "nothing"} of ${e.sequence}`,
  SequenceAdmitted: e => `${e.sequence} was admitted`,
  SequenceResumed: e => `${e.sequence} was resumed`,
  SequenceForked: e => `${e.child} was forked from ${e.parent}`,
  SequenceScheduled: e => `${e.sequence} computes ${count(e.num_tokens, "token")} from position ${e.start} on`,
  RequestPreempted: e => `${e.request} was preempted for ${e.for_sequence}`,
  BlockCopied: e => `block ${e.source} was copied to ${e.destination} for ${e.sequence}`,
  StepPlanned: e => `step ${e.step} was planned`,
  StepLaunched: e => `step ${e.step} was launched`,
  TokensGenerated: e => `step ${e.step} generated its token`,
  SequenceFinished: e => `${e.sequence} finished`,
  RequestRejected: e => `${e.request} was refused`,
  HostBlocksFreed: e => `${e.sequence} gave up ${count(e.host_blocks.length, "host block")}`,
  TokensWritten: e => `step ${e.step} wrote keys and values of ${count(sum(e.counts), "token")}`,
  KernelTraced: e => `the kernel was traced for ${e.sequence}`,
  StepCommitted: e => `step ${e.step} was over`,
  StepFailed: e => `step ${e.step} failed`,
  EngineHalted: () => "the engine was halted",
  EngineContinued: () => "the engine went on",
};

function inShort(event) {
  return SHORT[event.kind]?.(event) ?? `something that this page does not know, in step ${event.step}`;
}

/** Where an event or a picture stands: "step 5" while it lasts, "after step 5" once it is over. */
function stepPlace({ step, phase }) {
  if (phase !== "idle") return `step ${step}`;
  return step > 0 ? `after step ${step - 1}` : "before step 0"; // between steps the number is that of the next
}

/** Where the engine stands still, in the picture or event `moment`, after a phase: "after plan of step 5". */
function haltPlace(after, moment) {
  return after === "commit" ? stepPlace(moment) : `after ${after} of step ${moment.step}`;
}

function whyOf(event, state) {
  const source = sourceOf(event, state.header);
  return `${stepPlace(event)} · event ${event.seq} · why: ${reasonOf(event, state)}` + (source && ` · ${source}`);
}

/** The line of the engine that emits such an event, "engine/swap.py:41"; empty if the run does not tell. */
function sourceOf(event, header) {
  return header?.sources?.[`${event.kind}/${event.why}`] ?? header?.sources?.[event.kind] ?? "";
}

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

function blocksFor(tokens, map) {
  return Math.ceil(tokens / map.block_size);
}

/** "3 blocks"; without a number where the map does not show the sequence. */
function blocksHeld(view) {
  return view ? count(view.table.length, "block") : "blocks";
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}

function atPosition(event, state) {
  const scheduled = state.event(event.cause);
  return scheduled?.kind === "SequenceScheduled" ? ` position ${scheduled.start}` : "";
}

/** Who else holds the source of a copy: by name where the map still shows it, else their number. */
function othersHolding(event, map, state) {
  const names = Object.values(map.sequences)
    .filter(view => view.sequence !== event.sequence && view.table.includes(event.source))
    .map(view => view.sequence);
  const released = state.event(event.seq + 1);
  const others = released?.kind === "BlockReleased" ? released.ref_count : names.length;
  const who = names.length !== others ? count(others, "other table")
    : others > 3 ? `${names.slice(0, 2).join(", ")} and ${others - 2} more`
      : names.join(", ").replace(/, ([^,]*)$/, " and $1");
  return `${who} still ${others === 1 ? "reads" : "read"}`;
}

const FINISH_WORDS = {
  stop: "with an end token or a stop text", length: "at its limit of tokens", abort: "because it was withdrawn",
  out_of_blocks: "because the whole pool is too small for it", error: "because its step failed",
  beam: "as a beam: others score better, or the search is over",
};

function finishWords(event, map) {
  const view = map.sequences[event.sequence];
  const tokens = view ? ` after ${count(view.token_ids.length - view.num_prompt_tokens, "new token")}` : "";
  const words = event.why === "max_model_len" ? "at max_model_len, the longest that the model can read"
    : FINISH_WORDS[event.reason] ?? `(${event.reason})`;
  return words + tokens;
}
