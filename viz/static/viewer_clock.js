// The user's own clock: where they look, how far behind the newest event, and the ways to move. It moves nobody else.
//
//   YOU  event 9,728 · step 31 · 214 behind   [|◂] [◂] [▸] [▸|]   ----o------   [copy-on-write ▾]
//   [‹ previous] [next ›] [back to live]

/** What a user may want to jump to: words -> kinds of events. */
const LANDMARKS = {
  "copy-on-write": ["BlockCopied"], "fork": ["SequenceForked"], "prefix hit": ["PrefixLookup"],
  "new block": ["BlockAllocated"], "shared block": ["BlockShared"], "eviction": ["BlockEvicted"],
  "preemption": ["RequestPreempted"], "swap": ["BlocksSwappedOut", "BlocksSwappedIn"], "arrival": ["RequestArrived"],
  "admission": ["SequenceAdmitted", "SequenceResumed"], "finish": ["SequenceFinished"], "failed step": ["StepFailed"],
  "halt": ["EngineHalted"],
};

class ViewerClock {
  constructor(box, viewer) {
    this.viewer = viewer;
    const button = (words, title, act) => makeButton(words, act, { title, "aria-label": title });
    this.where = make("b", "where");
    this.behind = make("span", "behind");
    this.slider = make("input", "scrub",
      { type: "range", step: "1", "aria-label": "event, from the oldest held to the newest" });
    this.slider.addEventListener("input", () => viewer.goTo(Number(this.slider.value)));
    this.landmark = make("select", "", { "aria-label": "kind of event to jump to" },
      ...Object.keys(LANDMARKS).map(words => make("option", "", { value: words }, words)));
    this.live = button("back to live", "follow the newest event (Escape)", () => viewer.goLive());
    this.live.classList.add("primary");
    this.carry = make("span", "carry", { role: "group", "aria-label": "carry away" },
      button("copy link", "copy a link to this moment and block", () => this.copyLink()),
      button("PNG", "save the block map as a picture", () => this.savePicture()));
    box.append(make("span", "clock", {}, "you"), this.where, this.behind,
      button("|◂", "to the step before (Shift+Left)", () => this.moveStep(-1)),
      button("◂", "to the event before (Left)", () => this.move(-1)),
      button("▸", "to the next event (Right)", () => this.move(1)),
      button("▸|", "to the next step (Shift+Right)", () => this.moveStep(1)),
      this.slider,
      make("span", "jump", {}, this.landmark,
        button("‹ previous", "to the one before (P)", () => this.jump(-1)),
        button("next ›", "to the next one (N)", () => this.jump(1))),
      this.live);
    viewer.parts.tools.append(this.carry);
  }

  get seq() { return this.viewer.map.seq; }

  async move(by) {
    if (by < 0 && this.seq <= this.viewer.history.oldest) await this.viewer.loadOlder?.();
    this.viewer.goTo(this.seq + by);
  }

  /** To the last event of the step before, or of the step after. */
  async moveStep(by) {
    const { history } = this.viewer;
    let index = history.steps.indexOf(this.seq);
    if (by < 0 && index <= 0 && await this.viewer.loadOlder?.()) index = history.steps.indexOf(this.seq);
    const { steps } = history.steps;
    if (by < 0) this.viewer.goTo(index > 0 ? steps[index - 1].last : history.oldest - 1);
    else this.viewer.goTo(steps[this.seq < (steps[index]?.last ?? -1) ? index : index + 1]?.last ?? history.newest);
  }

  /** To the next or the previous event of the chosen kind, so that the picture stands just after it. */
  async jump(direction) {
    const { viewer } = this;
    const kinds = LANDMARKS[this.landmark.value];
    let to = direction > 0 ? viewer.history.next(kinds, this.seq) : viewer.history.previous(kinds, this.seq);
    while (to === undefined && direction < 0 && await viewer.loadOlder?.()) {
      to = viewer.history.previous(kinds, this.seq);
    }
    if (to !== undefined) viewer.goTo(to);
    else this.say(`no ${this.landmark.value} ${direction > 0 ? "after" : "before"} this`);
  }

  say(words) {
    this.said = words;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => { this.said = ""; this.viewer.redraw(); }, 3000);
    this.viewer.redraw();
  }

  async copyLink() {
    const { header, selection, place } = this.viewer;
    const { block } = selection;
    const hash = new URLSearchParams({ ...(place ?? { run: header.run }), seq: this.seq, ...(block === null ? {} : { block }) });
    const url = new URL(`#${hash}`, location.href);
    history.replaceState(null, "", url);
    const copied = await navigator.clipboard?.writeText(url.href).then(() => true, () => false);
    this.say(`the link is in the address bar${copied ? " and on the clipboard" : ": copy it from there"}`);
  }

  async savePicture() {
    const picture = URL.createObjectURL(await this.viewer.blockMap.toPNG());
    make("a", "", { href: picture, download: `pagelens-${this.viewer.header.run}-${this.seq}.png` }).click();
    setTimeout(() => URL.revokeObjectURL(picture), 10_000);
  }

  onKey(event) {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (typing || event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey || !this.viewer.map) return;
    const acts = {
      ArrowLeft: () => (event.shiftKey ? this.moveStep(-1) : this.move(-1)),
      ArrowRight: () => (event.shiftKey ? this.moveStep(1) : this.move(1)),
      n: () => this.jump(1), p: () => this.jump(-1), Escape: () => this.viewer.goLive(),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  paint() {
    const { viewer } = this;
    const { history, map } = viewer;
    const behind = history.newest - map.seq;
    const place = stepPlace(map);
    setText(this.where, `event ${map.seq.toLocaleString("en")} · ${place}`);
    const growing = history.live || history.growing;
    const atEnd = !growing && behind === 0;
    const state = atEnd ? "at its end" : viewer.following ? "following" : `${behind.toLocaleString("en")} behind`;
    setText(this.behind, this.said || state);
    setText(this.live, growing ? "back to live" : "to the end");
    this.live.disabled = viewer.following || atEnd;
    this.slider.min = history.oldest - 1;
    this.slider.max = Math.max(history.newest, history.oldest);
    if (document.activeElement !== this.slider || viewer.following) this.slider.value = map.seq;
    this.slider.setAttribute("aria-valuetext", `event ${map.seq}, ${place}`);
  }
}

/** What a copied link names after its #: {run, seq, block}, each null where it names none. */
function momentOfLink(hash) {
  const named = new URLSearchParams(hash.slice(1));
  const wholeNumber = name => (/^\d+$/.test(named.get(name)) ? Number(named.get(name)) : null);
  return { run: named.get("run"), seq: wholeNumber("seq"), block: wholeNumber("block") };
}
