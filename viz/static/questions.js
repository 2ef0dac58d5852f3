// A question before an event: asked while the picture stands just before it, graded from the events that follow.

const ASKED = { block: "The number of the block, or choose it on the map:", number: "A number:" };

class QuestionCard {
  /** `answered(given, isRight)` is called once, with null where the question was skipped; `goOn()` after the answer. */
  constructor(stop, question, track, { answered, goOn }) {
    Object.assign(this, { stop, question, track, answered, goOn });
    this.verdict = make("div", "graded", { "aria-live": "polite" });
    this.hint = make("p", "hint", { hidden: "" }, question.hint);
    this.form = make("form", "answer", { novalidate: "" }, ...this.controls());
    this.form.addEventListener("submit", event => {
      event.preventDefault();
      if (this.input && !Number.isNaN(this.input.valueAsNumber)) this.grade(this.input.valueAsNumber);
      else if (this.input) this.input.focus();
    });
    const attributes = { "data-kind": "question", role: "group", "aria-label": "question", tabindex: "-1" };
    this.element = make("div", "card", attributes,
      make("p", "", {}, make("b", "", {}, "What happens next? "), question.text), this.form, this.hint, this.verdict);
    this.element.addEventListener("keydown", event => this.onKey(event));
    if (question.ask === "block") track.viewer.selection.clear();
  }

  controls() {
    const { ask, choices, hint } = this.question;
    const others = [...(hint ? [makeButton("hint", () => { this.hint.hidden = false; })] : []),
      makeButton("skip", () => this.grade(null))];
    if (ask === "choice") return [...this.options(shuffled(Object.entries(choices))), ...others];
    if (ask === "sequence") return [...this.options(this.sequences().map(name => [name, name])), ...others];
    this.input = make("input", "", { type: "number", step: "1" });
    return [make("label", "", {}, ASKED[ask], " ", this.input),
      make("button", "primary", { type: "submit" }, "answer"), ...others];
  }

  options(pairs) {
    return pairs.map(([value, words]) => makeButton(words, () => this.grade(value), { class: "option" }));
  }

  /** The sequences that are there now, and have not ended. */
  sequences() {
    const views = Object.values(this.track.viewer.map.sequences).filter(view => view.status !== "finished");
    return views.map(view => view.sequence);
  }

  /** To where an answer is typed, else to the question itself: Enter must not answer what nobody has read. */
  focus() {
    (this.input ?? this.element).focus({ preventScroll: true });
  }

  /** The keys 1 to 9 choose. */
  onKey(event) {
    const options = [...this.form.querySelectorAll(".option")];
    const option = event.target === this.input ? undefined : options[Number(event.key) - 1];
    if (option) option.click();
  }

  /** A block that was pinned on the map is the answer to be given. */
  paint() {
    const { pinned } = this.track.viewer.selection;
    if (this.done || this.question.ask !== "block" || pinned === this.pinned) return;
    this.pinned = pinned;
    if (pinned !== null) this.input.value = pinned;
  }

  grade(given) {
    if (this.done) return;
    this.done = true;
    const { answers } = this.stop;
    const isRight = answers.map(String).includes(String(given));
    this.answered(given, isRight);
    const say = given === null ? "Skipped: it is " : isRight ? "Right: " : `No, not ${this.words(given)}: it is `;
    const next = makeButton("go on", this.goOn, { class: "primary" });
    this.verdict.className = `graded ${isRight ? "right" : "wrong"}`;
    this.verdict.replaceChildren(
      make("p", "", {}, make("b", "", {}, say + answers.map(answer => this.words(answer)).join(" or ")), ". ",
        this.question.why), make("p", "acts", {}, next));
    this.form.hidden = this.hint.hidden = true;
    next.focus({ preventScroll: true });
  }

  words(answer) {
    if (this.question.ask === "block") return `block ${answer}`;
    return answer in this.question.choices ? `“${this.question.choices[answer]}”` : String(answer);
  }
}

/** Choices in an order that does not tell which is right, and is the same for everybody: by a hash of their words. */
function shuffled(choices) {
  const hash = words => [...words].reduce((number, letter) => (number * 31 + letter.charCodeAt(0)) % 1_000_003, 7);
  return choices.toSorted(([, a], [, b]) => hash(a) - hash(b));
}
