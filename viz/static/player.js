// Player: plays a scenario at its user's pace, stops at its tour and its questions, and keeps the score. Nothing stops
// any engine: what is played is a recording, and everybody has their own clock.
//
//     one track     event by event, or step by step
//     two tracks    step by step or by time, so that both stand at the same moment; a stop of either holds both

const PACES = {
  "2 events/s": { unit: "events", every: 500 }, "10 events/s": { unit: "events", every: 100 },
  "30 events/s": { unit: "events", every: 33 }, "1 step/s": { unit: "steps", every: 1000 },
  "4 steps/s": { unit: "steps", every: 250 }, "16 steps/s": { unit: "steps", every: 62 },
  "as it took": { unit: "time", every: 50, speed: 1 }, "4 times slower": { unit: "time", every: 50, speed: 0.25 },
};
const FIRST_PACE = { events: "10 events/s", steps: "4 steps/s", time: "as it took" };

class Player {
  constructor(box, scenario, tracks) {
    this.scenario = scenario;
    this.tracks = tracks;
    this.card = null;
    this.playing = true; // from the first event on, as soon as there is one
    this.timer = 0;
    this.makeControls(box);
    this.restart();
    for (const track of tracks) track.viewer.painted = () => this.onPainted(track);
    this.play();
  }

  makeControls(box) {
    const units = this.tracks.length > 1 ? (this.scenario.clock === "time" ? ["time", "steps"] : ["steps"]) : ["events", "steps"];
    const first = this.tracks.length > 1 ? this.scenario.clock : this.scenario.pace;
    this.toggle = this.button("❚❚ pause", "play or pause (space)", () => (this.playing ? this.pause() : this.play()));
    this.toggle.classList.add("primary");
    this.pace = make("select", "", { "aria-label": "pace" }, ...Object.keys(PACES).filter(words =>
      units.includes(PACES[words].unit)).map(words => make("option", "", { value: words }, words)));
    this.pace.value = FIRST_PACE[first];
    this.pace.addEventListener("change", () => { this.clock = this.clockAt(this.tracks[0]); });
    this.next = this.button("next question", "to the next question that is open", () => this.nextQuestion());
    this.state = make("span", "state", { role: "status" });
    this.story = make("div", "scenario-story", { "aria-live": "polite" });
    box.append(make("div", "player", { role: "group", "aria-label": "player" }, this.toggle, this.pace, this.next,
      this.button("restart", "from the beginning, all questions open again", () => { this.restart(); this.play(); }), this.state),
    this.story);
  }

  button(words, title, act) {
    const element = make("button", "", { type: "button", title }, words);
    element.addEventListener("click", act);
    return element;
  }

  close() {
    this.pause();
    for (const track of this.tracks) track.close();
  }

  // the clock

  restart() {
    this.answers = new Map(); // number of a question -> whether the answer was right
    this.toured = new Set();
    this.clock = 0; // steps that are over, or ns
    this.dismiss();
    for (const track of this.tracks) if (track.history) this.move(track, track.history.oldest - 1);
    this.show(make("p", "card", {}, this.scenario.watch));
  }

  play() {
    if (this.card) return; // a card waits for its reader
    if (this.tracks.every(track => track.ended)) this.restart();
    this.playing = true;
    this.schedule();
    this.paint();
  }

  pause() {
    this.playing = false;
    clearTimeout(this.timer);
    this.paint();
  }

  schedule() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.tick(), PACES[this.pace.value].every);
  }

  tick() {
    if (!this.playing) return;
    if (this.tracks.some(track => !track.viewer.root.isConnected)) return this.pause(); // the tab was taken off the page
    if (this.tracks.every(track => track.history)) this.advance();
    if (this.tracks.every(track => track.ended)) this.finish();
    else if (this.playing) this.schedule();
  }

  /** One event, one step, or a stretch of time on; less where there is a stop. */
  advance() {
    const { unit, every, speed } = PACES[this.pace.value];
    if (unit === "events") {
      const [track] = this.tracks;
      this.carry([Math.min(track.at + 1, track.history.newest)]);
      return;
    }
    const [clock, targets] = unit === "steps" ? [this.clock + 1, this.tracks.map(track => track.endOfStep(this.clock))]
      : [this.clock + every * speed * 1e6, this.tracks.map(track => track.endOfTime(this.clock + every * speed * 1e6))];
    if (targets.includes(null)) return; // the run has not come so far
    if (this.carry(targets)) this.clock = clock;
  }

  /** Move each track to its target, or one of them to a stop before; returns whether all are there. */
  carry(targets) {
    for (const [i, track] of this.tracks.entries()) {
      const stop = track.nextStop(targets[i], each => this.isOpen(each));
      if (stop) {
        this.stopAt(track, stop);
        return false;
      }
    }
    this.tracks.forEach((track, i) => this.move(track, Math.max(track.at, targets[i])));
    return true;
  }

  move(track, seq) {
    if (seq === track.at) return;
    track.placed = seq;
    track.viewer.goTo(seq);
  }

  /** A user has moved one viewer by its own clock: the player stands there too. */
  onPainted(track) {
    if (track.history && track.at !== track.placed) {
      track.placed = track.at;
      this.dismiss();
      this.pause();
      this.clock = this.clockAt(track);
      const { step } = track.viewer.map;
      for (const other of this.tracks) if (other !== track) this.move(other, other.endOfStep(step) ?? other.history.newest);
    }
    if (this.tracks.length > 1 && track.history) paintNumbers(track);
    this.card?.paint?.();
    this.paint();
  }

  /** What the clock shows where a track stands. */
  clockAt(track) {
    const { unit } = PACES[this.pace.value];
    return unit === "time" ? track.viewer.event(track.at)?.t ?? 0 : track.viewer.map?.step ?? 0;
  }

  // stops

  isOpen(stop) {
    return stop.kind === "question" ? !this.answers.has(stop.number) : !this.toured.has(stop.number);
  }

  stopAt(track, stop) {
    this.pause();
    this.move(track, stop.at);
    const goOn = () => {
      this.dismiss();
      this.play();
    };
    if (stop.kind === "tour") {
      this.toured.add(stop.number);
      this.show(tourCard(stop, this.scenario.tour[stop.number], track, goOn), {});
      this.story.querySelector("button").focus({ preventScroll: true });
      return;
    }
    const card = new QuestionCard(stop, this.scenario.questions[stop.number], track, {
      answered: (given, isRight) => {
        this.answers.set(stop.number, given === null ? null : isRight);
        if (!track.nextStop(stop.shown - 1, each => this.isOpen(each))) this.move(track, stop.shown);
      },
      goOn,
    });
    this.show(card.element, card);
    card.focus();
  }

  /** To the next open question, past whatever lies before it. */
  nextQuestion() {
    this.dismiss();
    const found = this.tracks.map(track => ({ track, stop: track.nextStop(Infinity, stop =>
      stop.kind === "question" && this.isOpen(stop)) })).filter(({ stop }) => stop);
    if (found.length === 0) return;
    const { track, stop } = found.reduce((best, one) => (this.stepOf(one) < this.stepOf(best) ? one : best));
    const step = this.stepOf({ track, stop });
    this.clock = step;
    for (const other of this.tracks) if (other !== track) this.move(other, other.endOfStep(step - 1) ?? other.at);
    this.stopAt(track, stop);
  }

  stepOf({ track, stop }) {
    return track.history.event(stop.seq)?.step ?? Infinity;
  }

  show(element, card = null) {
    this.card = card;
    this.story.replaceChildren(element);
    this.paint();
  }

  dismiss() {
    this.card = null;
    for (const track of this.tracks) if (track.history) track.viewer.highlight([]);
    this.story.replaceChildren();
  }

  finish() {
    this.pause();
    const given = [...this.answers.values()].filter(isRight => isRight !== null);
    const right = given.filter(Boolean).length;
    const total = this.scenario.questions.length;
    const words = total === 0 ? "The run is over." : `The run is over. ${right} of ${total} questions answered right`
      + (given.length < total ? `, ${total - given.length} not answered.` : ".");
    this.show(make("p", "card score", { "data-kind": "score" }, words));
  }

  paint() {
    const isOver = this.tracks.every(track => track.ended);
    setText(this.toggle, this.playing ? "❚❚ pause" : isOver ? "▶ again" : "▶ play");
    this.toggle.disabled = this.card !== null;
    this.next.disabled = !this.tracks.some(track => track.nextStop(Infinity, stop => stop.kind === "question" && this.isOpen(stop)));
    setText(this.state, this.stateWords());
  }

  stateWords() {
    const failed = this.tracks.find(track => track.error);
    if (failed) return `the run failed: ${failed.error}`;
    if (this.tracks.some(track => track.waiting)) return "another run is made first, yours is next…";
    if (this.tracks.some(track => !track.history)) return "an engine is started…";
    const growing = this.tracks.filter(track => track.history.growing);
    if (growing.length > 0) return `the run is being made: step ${Math.min(...growing.map(track => track.history.map.step))}…`;
    const total = this.scenario.questions.length;
    return total ? `${this.answers.size} of ${count(total, "question")} done` : "";
  }
}
