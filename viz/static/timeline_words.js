// The timeline in words: under the pointer, beside its cursor, and for who cannot see it.

const DONE = { StepPlanned: "planned", TokensWritten: "launched", StepCommitted: "committed" };
const DOING = { plan: "planning", launch: "launching", commit: "committing" };

/** "step 31, planned", and between steps "after step 31". */
function cursorWords(map, event) {
  if (map.phase === "idle") return stepPlace(map);
  return `step ${map.step}, ${DONE[event?.kind] ?? DOING[map.phase]}`;
}

function spanInWords({ kind, tokens, from, to, reason }) {
  if (kind === "finished") return FINISHED[reason] ?? `finished: ${reason}`;
  if (kind === "decode") return "decode, 1 token";
  if (RESTING.has(kind)) return `${RESTING_WORDS[kind]} since step ${from}`;
  return `${kind === "recompute" ? "computes again" : "prefill,"} ${count(tokens, "token")}`;
}

function rowInWords(row, step) {
  const span = spanAt(row, step);
  return `${row.name}: ${span ? `${spanInWords(span)}, in step ${step}` : `nothing in step ${step}`}`;
}

/** What the step that a picture shows does, as a sentence for who cannot see it. */
function stepInWords(log, map, event) {
  const step = log.at(map.step);
  const doing = log.inOrder().flatMap(row => {
    const span = spanAt(row, map.step);
    return span ? [`${row.name} ${spanInWords(span)}`] : [];
  });
  const tokens = step?.step === map.step && step.budget ? `: ${step.tokens} of ${step.budget} tokens` : "";
  return `${cursorWords(map, event)}${tokens}. ${doing.slice(0, 12).join("; ")}`
    + (doing.length > 12 ? `; and ${doing.length - 12} more` : "");
}
