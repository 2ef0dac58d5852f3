// The player's bar: play and pause, the pace, the next question, restart; and what is going on, in words.

const PACES = {
  "2 events/s": { unit: "events", every: 500 }, "10 events/s": { unit: "events", every: 100 },
  "30 events/s": { unit: "events", every: 33 }, "1 step/s": { unit: "steps", every: 1000 },
  "4 steps/s": { unit: "steps", every: 250 }, "16 steps/s": { unit: "steps", every: 62 },
  "as it took": { unit: "time", every: 50, speed: 1 }, "4 times slower": { unit: "time", every: 50, speed: 0.25 },
};
const FIRST_PACE = { events: "10 events/s", steps: "4 steps/s", time: "as it took" };

class PlayerBar {
  constructor(box, player) {
    this.player = player;
    const { scenario, tracks } = player;
    const units = tracks.length === 1 ? ["events", "steps"] : scenario.clock === "time" ? ["time", "steps"] : ["steps"];
    const toggle = () => (player.playing ? player.pause() : player.play());
    this.toggle = makeButton("❚❚ pause", toggle, { class: "primary", title: "play or pause (space)" });
    this.select = make("select", "", { "aria-label": "pace" },
      ...Object.keys(PACES).filter(words => units.includes(PACES[words].unit))
        .map(words => make("option", "", { value: words }, words)));
    this.select.value = FIRST_PACE[tracks.length > 1 ? scenario.clock : scenario.pace];
    this.select.addEventListener("change", () => player.resetClock());
    this.next = makeButton("next question", () => player.nextQuestion(),
      { title: "to the next question that is open" });
    const restart = makeButton("restart", () => {
      player.restart();
      player.play();
    }, { title: "from the beginning, all questions open again" });
    this.state = make("span", "state", { role: "status" });
    box.append(make("div", "player", { role: "group", "aria-label": "player" },
      this.toggle, this.select, this.next, restart, this.state));
  }

  /** How the player moves now: {unit, every, speed}. */
  get pace() { return PACES[this.select.value]; }

  paint() {
    const { player } = this;
    const isOver = player.tracks.every(track => track.ended);
    setText(this.toggle, player.playing ? "❚❚ pause" : isOver ? "▶ again" : "▶ play");
    this.toggle.disabled = player.card !== null;
    this.next.disabled = player.openQuestions().length === 0;
    setText(this.state, this.words());
  }

  words() {
    const { tracks, scenario, answers } = this.player;
    const failed = tracks.find(track => track.error);
    if (failed) return `the run failed: ${failed.error}`;
    if (tracks.some(track => track.waiting)) return "another run is made first, yours is next…";
    if (tracks.some(track => !track.history)) return "an engine is started…";
    const growing = tracks.filter(track => track.history.growing).map(track => track.history.map.step);
    if (growing.length > 0) return `the run is being made: step ${Math.min(...growing)}…`;
    const total = scenario.questions.length;
    return total ? `${answers.size} of ${count(total, "question")} done` : "";
  }
}
