// StepLog: what each step did and, row by row, what each sequence did over the steps. The timeline draws the rows, the
// counters read the steps.
//
//     steps     30                   31                          each: its events, tokens, budget, memory, time
//     row B     |waiting ...         |prefill 14 |decode ...     spans of steps, in order; an open one has no end yet
//     row B.1                        '-|decode ...               a fork begins where it leaves its parent
//
// A decode of a hundred steps is one span, so a long run has few.

/** Why a sequence is scheduled -> the kind of its span. */
const WORK = { prefill: "prefill", prefill_chunk: "prefill", recompute: "recompute", next_token: "decode" };

/** Kinds of span that end only with another event. */
const RESTING = new Set(["waiting", "preempted", "swapped"]);

/** Phase -> the part of its step that is over at its end; `idle` is what happens before the plan. */
const PHASE_ENDS = { idle: 0, plan: 1 / 3, launch: 2 / 3, commit: 1 };

class StepLog {
  /** `base` is the picture before the first event. */
  constructor(header, base) {
    this.steps = []; // {step, first, last (seqs), t, tokens, budget, ns, waiting; memory, flow: of RunTally}
    this.rows = new Map(); // sequence -> {name, request, lane, parent, forkedAt, spans: [{kind, from, to, tokens}]}
    this.tally = new RunTally(header, base);
    for (const view of Object.values(base.sequences)) {
      if (view.status === "finished") continue;
      const row = this.row(view.sequence, view);
      const swapped = view.table.some(block => block < 0);
      if (view.status === "waiting") openSpan(row, "waiting", base.step);
      if (view.status === "preempted") openSpan(row, swapped ? "swapped" : "preempted", base.step);
    }
  }

  /** Take in one event; `map` is the picture after it. */
  note(event, map) {
    let step = this.steps.at(-1);
    if (!step || step.step !== event.step) {
      step = { step: event.step, first: event.seq, last: event.seq, t: event.t, tokens: 0, budget: 0, ns: 0, waiting: 0,
        memory: null, flow: this.tally.begin() };
      this.steps.push(step);
    }
    step.last = event.seq;
    step.t = event.t;
    this.tally.note(event, map);
    if (Object.hasOwn(ROW_EVENTS, event.kind)) ROW_EVENTS[event.kind](this, event, map);
    else if (Object.hasOwn(STEP_EVENTS, event.kind)) STEP_EVENTS[event.kind](step, event, map, this.tally);
  }

  /** The row of a sequence. */
  row(name, { request, lane, parent }) {
    let row = this.rows.get(name);
    if (row?.lane !== lane || row.parent !== parent) { // new, or its name is used again
      row = { name, request, lane, parent, forkedAt: null, spans: row?.spans ?? [] };
      this.rows.set(name, row);
      this.sorted = null;
    }
    return row;
  }

  /** All rows: requests in order of arrival, each fork below its parent. */
  inOrder() {
    if (this.sorted) return this.sorted;
    const children = new Map();
    for (const row of this.rows.values()) {
      const above = this.rows.has(row.parent) && row.parent !== row.name ? row.parent : `request ${row.request}`;
      children.set(above, [...(children.get(above) ?? []), row]);
    }
    const below = name => (children.get(name) ?? []).flatMap(row => [row, ...below(row.name)]);
    const requests = new Set([...this.rows.values()].map(row => `request ${row.request}`));
    return this.sorted = [...requests].flatMap(below);
  }

  /** Put older steps in front; a step or a span that was cut in two becomes one again. */
  prepend(older) {
    const [seam, first] = [older.steps.at(-1), this.steps[0]];
    if (seam && first && seam.step === first.step) {
      const planned = first.budget ? first : seam;
      for (const name of Object.keys(first.flow)) first.flow[name] += seam.flow[name];
      Object.assign(first, { first: seam.first, memory: first.memory ?? seam.memory, budget: planned.budget,
        tokens: planned.tokens, waiting: planned.waiting });
      older.steps.pop();
    }
    this.steps = older.steps.concat(this.steps);
    for (const [name, row] of this.rows) {
      const before = older.rows.get(name);
      if (before) {
        row.spans = joinedSpans(before.spans, row.spans);
        row.forkedAt ??= before.forkedAt;
      }
      older.rows.set(name, row);
    }
    this.rows = older.rows;
    this.sorted = null;
  }

  /** Forget the steps that end before event `seq`, and the rows that ended in them. */
  dropBefore(seq) {
    const keep = this.steps.findIndex(step => step.last >= seq);
    this.steps = keep < 0 ? [] : this.steps.slice(keep);
    const first = this.steps[0]?.step ?? Infinity;
    for (const [name, row] of this.rows) {
      const ended = row.spans.at(-1)?.kind === "finished";
      row.spans = row.spans.slice(firstSpanFrom(row, first));
      if (row.spans.length === 0 && ended) this.rows.delete(name);
    }
    this.sorted = null;
  }

  /** Index of the step that event `seq` belongs to, -1 if it is not held. */
  indexOf(seq) {
    return lastUpTo(this.steps, step => step.first, seq);
  }

  /** The step with a number, or the nearest one before it, or undefined. */
  at(number) {
    return this.steps[lastUpTo(this.steps, step => step.step, number)];
  }

  get firstStep() { return this.steps[0]?.step ?? 0; }
  get lastStep() { return this.steps.at(-1)?.step ?? 0; }
}

/** Index of the last element whose number, as `of` tells it, is at most `most`; -1 if there is none. */
function lastUpTo(elements, of, most) {
  let low = 0;
  let high = elements.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (of(elements[middle]) <= most) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Index of the first span of a row that reaches step `step` or begins after it. */
function firstSpanFrom({ spans }, step) {
  let index = lastUpTo(spans, span => span.from, step) + 1;
  while (index > 0 && spans[index - 1].to >= step) index--; // two: it ended in the step that computed its last token
  return index;
}

/** The span of a row in a step, or undefined. */
function spanAt(row, step) {
  const span = row.spans[firstSpanFrom(row, step)];
  return span && span.from <= step ? span : undefined;
}

function openSpan(row, kind, step) {
  closeSpan(row, step);
  row.spans.push({ kind, from: step, to: Infinity, tokens: 0 });
}

/** End the span that is open, with the step before `step`. */
function closeSpan(row, step) {
  const last = row.spans.at(-1);
  if (last?.to !== Infinity) return;
  last.to = step - 1;
  if (last.to < last.from) row.spans.pop();
}

/** The spans of one row from before and after a seam. */
function joinedSpans(before, after) {
  const first = after[0];
  if (!first || before.length === 0) return before.concat(after);
  const last = { ...before.at(-1) };
  const isOneDecode = last.kind === "decode" && first.kind === "decode" && first.from === last.to + 1;
  if (isOneDecode || (last.to === Infinity && RESTING.has(first.kind))) {
    const whole = { ...first, kind: last.kind, from: last.from, tokens: last.tokens + first.tokens };
    return [...before.slice(0, -1), whole, ...after.slice(1)];
  }
  const row = { spans: [...before.slice(0, -1), last] };
  closeSpan(row, Math.floor(first.at ?? first.from));
  return row.spans.concat(after);
}

const ROW_EVENTS = {
  RequestArrived(log, e, map) { openSpan(log.row(e.sequence, map.sequences[e.sequence]), "waiting", e.step); },
  SequenceForked(log, e, map) {
    const row = log.row(e.child, map.sequences[e.child]);
    row.forkedAt = e.step + PHASE_ENDS[e.phase];
    if (e.status === "preempted") openSpan(row, "preempted", Math.floor(row.forkedAt));
  },
  SequenceScheduled(log, e, map) {
    const row = log.row(e.sequence, map.sequences[e.sequence]);
    closeSpan(row, e.step);
    const kind = WORK[e.why] ?? "prefill";
    const last = row.spans.at(-1);
    if (kind === "decode" && last?.kind === "decode" && last.to === e.step - 1) {
      last.to = e.step;
      last.tokens += e.num_tokens;
    } else row.spans.push({ kind, from: e.step, to: e.step, tokens: e.num_tokens });
  },
  RequestPreempted(log, e, map) {
    for (const name of e.sequences) {
      openSpan(log.row(name, map.sequences[name]), e.mode === "swap" ? "swapped" : "preempted", e.step);
    }
  },
  SequenceFinished(log, e, map) {
    const row = log.row(e.sequence, map.sequences[e.sequence]);
    const at = e.step + PHASE_ENDS[e.phase];
    closeSpan(row, Math.floor(at));
    row.spans.push({ kind: "finished", from: e.step, to: e.step, tokens: 0, at, reason: e.reason });
  },
};

const STEP_EVENTS = {
  StepPlanned(step, e) {
    step.budget = e.budget;
    step.waiting = e.num_waiting;
    step.tokens = e.num_tokens.reduce((total, number) => total + number, 0);
  },
  TokensWritten(step, e, map, tally) { step.memory = tally.memory(map); },
  StepCommitted(step, e) { step.ns = e.plan_ns + e.launch_ns + e.commit_ns; },
};

if (typeof module !== "undefined") module.exports = { StepLog };
