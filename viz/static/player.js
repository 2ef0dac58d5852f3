// Player: plays a scenario at its user's pace, stops at its tour and its questions, and keeps the score. Nothing stops
// any engine: what is played is a recording, and everybody has their own clock.
//
//     one track     event by event, or step by step
//     two tracks    step by step or by time, so that both stand at the same moment; a stop of either holds both

class Player {
  /** `moment` is where a link leads, {track, seq, block}, or null; `onward` a button for the end of the run. */
  constructor(box, scenario, tracks, { moment, onward }) {
    this.moment = moment;
    this.onward = onward;
    this.side = box;
    this.scenario = scenario;
    this.tracks = tracks;
    this.card = null;
    this.playing = true; // from the first event on, as soon as there is one
    this.timer = 0;
    this.bar = new PlayerBar(box, this);
    this.story = make("div", "scenario-story", { "aria-live": "polite" });
    box.append(this.story);
    this.restart();
    for (const track of tracks) track.viewer.painted = () => this.onPainted(track);
    if (moment) this.pause();
    else this.play();
  }

  close() {
    this.pause();
    for (const track of this.tracks) track.close();
  }

  /** A run has grown or failed. */
  onGrown() {
    if (this.moment && this.tracks.every(track => track.history && !track.history.growing)) {
      const { track, seq, block } = this.moment;
      this.moment = null;
      track.viewer.goTo(seq);
      if (block !== null) track.viewer.selection.pin(block);
    }
    this.paint();
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
    this.timer = setTimeout(() => this.tick(), this.bar.pace.every);
  }

  tick() {
    if (!this.playing) return;
    const isGone = this.tracks.some(track => !track.viewer.root.isConnected); // Gradio has taken the tab off the page
    if (isGone) return this.pause();
    if (this.tracks.every(track => track.history)) this.advance();
    if (this.tracks.every(track => track.ended)) this.finish();
    else if (this.playing) this.schedule();
  }

  /** One event, one step, or a stretch of time on; less where there is a stop. */
  advance() {
    const { unit, every, speed } = this.bar.pace;
    if (unit === "events") {
      const [track] = this.tracks;
      this.carry([Math.min(track.at + 1, track.history.newest)]);
      return;
    }
    const clock = this.clock + (unit === "steps" ? 1 : every * speed * 1e6);
    const targets = this.tracks.map(track => (unit === "steps" ? track.endOfStep(this.clock) : track.endOfTime(clock)));
    if (targets.includes(null)) return; // the run has not come so far
    if (this.carry(targets)) this.clock = clock;
  }

  /** Move each track to its target, or one of them to a stop before; returns whether all are there. */
  carry(targets) {
    for (const [i, track] of this.tracks.entries()) {
      const stop = track.nextStop(targets[i], each => this.isOpen(each));
      if (stop) {
        if (stop.at === targets[i]) this.moveFree(targets); // the stretch is over here, and so it is for the others
        this.stopAt(track, stop);
        return false;
      }
    }
    this.moveFree(targets);
    return true;
  }

  /** Move those that have no stop before their target. */
  moveFree(targets) {
    this.tracks.forEach((track, i) => {
      if (!track.nextStop(targets[i], each => this.isOpen(each))) this.move(track, Math.max(track.at, targets[i]));
    });
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
      const others = this.tracks.filter(other => other !== track);
      for (const other of others) this.move(other, other.endOfStep(step) ?? other.history.newest);
    }
    if (this.tracks.length > 1 && track.history) paintNumbers(track);
    this.card?.paint?.();
    this.paint();
  }

  /** The unit has changed. */
  resetClock() {
    this.clock = this.clockAt(this.tracks[0]);
  }

  /** What the clock shows where a track stands. */
  clockAt(track) {
    const { unit } = this.bar.pace;
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
      this.reveal(track);
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
    this.reveal(track);
  }

  /** Scroll to the map that a card is about, down to its host lane, if the card stays in view. */
  reveal(track) {
    const stays = getComputedStyle(this.side).position === "sticky";
    if (stays) track.viewer.parts.map.scrollIntoView({ block: "nearest" });
  }

  /** The next open question of each track that has one: [{track, stop}]. */
  openQuestions() {
    const isOpen = stop => stop.kind === "question" && this.isOpen(stop);
    return this.tracks.map(track => ({ track, stop: track.nextStop(Infinity, isOpen) })).filter(({ stop }) => stop);
  }

  /** To the next open question, past whatever lies before it. */
  nextQuestion() {
    this.dismiss();
    const found = this.openQuestions();
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
    this.show(make("div", "card score", { "data-kind": "score" },
      ...[words, ...(this.tracks.length > 1 ? this.tracks.map(sumUp) : []), this.scenario.conclusion]
        .filter(Boolean).map(line => make("p", "", {}, line)),
      make("p", "acts", {}, this.onward)));
  }

  paint() {
    this.bar.paint();
  }
}
