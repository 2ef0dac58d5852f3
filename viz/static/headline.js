// The headline: of all that happens, the one event that a viewer should read now.

/** How much an event tells: the highest of a step becomes the headline; 0 never does. */
const TELLING = {
  StepFailed: 100, BlockCopied: 90, RequestPreempted: 85, BlockEvicted: 80, SequenceResumed: 72, SequenceForked: 70,
  BlocksSwappedOut: 74, BlocksSwappedIn: 73, PrefixLookup: 68, SequenceFinished: 66, RequestAborted: 64,
  RequestRejected: 64, SequenceAdmitted: 60, RequestArrived: 50, BlockAllocated: 40, StepPlanned: 20,
};

function telling(event) {
  if (event.kind === "PrefixLookup" && event.hit_blocks === 0) return 0;
  if (event.kind === "StepPlanned" && event.sequences.length === 0 && !event.blocked) return 0;
  return TELLING[event.kind] ?? 0;
}

const NOTHING_YET = {
  rank: 0, title: "Nothing has happened yet", text: "Send a prompt and watch where its keys and values go.",
  why: "", alike: 0,
};

/** What to show in the past: the event at which a viewer stands. */
function headlineAt(event, state) {
  if (!event) {
    const title = state.history.oldest > 0 ? "Before the first event that is held" : "Before the first event";
    return { ...NOTHING_YET, title, text: "Step forward to see what came." };
  }
  if (event.kind === "StepCommitted") return headlineOfStep(event, state);
  return { ...sentenceOf(event, state), why: whyOf(event, state), alike: 0 };
}

/** What to show at the end of a step: its most telling event. */
function headlineOfStep(committed, state) {
  const { history } = state;
  const { first } = history.steps.at(committed.step);
  const best = history.slice(first, committed.seq)
    .reduce((most, event) => (telling(event) > telling(most) ? event : most), committed);
  const { title, text } = sentenceOf(best, state);
  const alike = history.slice(best.seq + 1, committed.seq).filter(event => event.kind === best.kind).length;
  const isWork = best === committed || best.kind === "StepPlanned"; // their titles say that it is the step
  return { title: isWork ? title : `In step ${best.step}: ${title}`, text, why: whyOf(best, state), alike };
}

/** Chooses what to show: the most telling event of the newest step, held long enough to be read. */
class Headline {
  constructor() {
    this.step = -1;
    this.best = null; // of the newest step: {rank, seq, kind, title, text, why, alike}
    this.shown = NOTHING_YET;
    this.shownAt = -Infinity;
  }

  /** Take note of an event, put into words while the map is as the event left it. */
  note(event, state) {
    const rank = telling(event);
    if (rank === 0) return;
    if (event.step !== this.step) Object.assign(this, { step: event.step, best: null });
    if (this.best && rank <= this.best.rank) {
      if (event.kind === this.best.kind) this.best.alike++;
      return;
    }
    this.best = { rank, seq: event.seq, kind: event.kind, ...sentenceOf(event, state), why: whyOf(event, state), alike: 0 };
  }

  /** What to show at time `now` (ms); the newest at once while the engine is halted. */
  current(now, halted) {
    const patience = this.shown.rank >= 60 ? 2500 : 600;
    const isDue = halted || now - this.shownAt > patience || this.best?.rank > this.shown.rank;
    if (this.best && this.best !== this.shown && isDue) {
      this.shown = this.best;
      this.shownAt = now;
    }
    return this.shown;
  }
}
