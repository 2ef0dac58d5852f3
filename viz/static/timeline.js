// The timeline: what each sequence did, step by step, and where the viewer stands in it. Click or drag to look back,
// wheel to zoom, brush the strip below to choose the steps shown.
//
// It follows the newest step as long as its viewer does. Once the user has scrubbed or brushed it stays where it is,
// until they go back to live.

const TOKENS_HEIGHT = 62;
const FEWEST_STEPS = 4;
const GOOD_STEP_WIDTH = 14;
const PHASES_SEEN = 30; // pixels a step must have for its phases to be told apart by a click
const TIMELINE_ROWS = 16;

class Timeline {
  constructor(box, viewer) {
    this.viewer = viewer;
    this.from = 0; // the steps shown: `span` of them; while the viewer follows, `from` is set anew with each paint
    this.span = null; // chosen by the user; null: as many as are good to see
    this.painted = "";
    this.where = make("span", "where");
    this.older = make("button", "", { type: "button", hidden: "" }, "earlier steps");
    this.older.addEventListener("click", () => this.loadOlder());
    this.rows = make("canvas", "timeline-plot", { tabindex: "0", role: "application" });
    this.filler = make("div");
    this.scroller = make("div", "timeline-rows", {}, this.rows, this.filler);
    this.tokens = make("canvas", "timeline-plot");
    this.legend = make("ul", "legend");
    this.overview = new TimelineOverview((from, span) => this.brush(from, span));
    this.spoken = make("p", "unseen", { "aria-live": "polite" });
    box.append(make("div", "timeline-head hint", {}, this.where, this.older), this.scroller, this.tokens,
      this.overview.canvas, this.legend, this.spoken);
    this.listen();
    this.observer = new ResizeObserver(() => { if (viewer.history) this.paint(); });
    this.observer.observe(box);
  }

  listen() {
    for (const canvas of [this.rows, this.tokens]) {
      canvas.addEventListener("pointerdown", event => this.press(event));
      canvas.addEventListener("pointermove", event => this.move(event));
      canvas.addEventListener("pointerleave", () => this.hover(null));
      canvas.addEventListener("wheel", event => this.wheel(event), { passive: false });
      for (const name of ["pointerup", "pointercancel"]) {
        canvas.addEventListener(name, () => { this.scrubbing = false; });
      }
    }
    this.rows.addEventListener("keydown", event => this.onKey(event));
    this.rows.addEventListener("focus", () => this.speak());
    this.scroller.addEventListener("scroll", () => this.paint());
  }

  get log() { return this.viewer.history.steps; }

  close() {
    this.observer.disconnect();
    this.viewer.selection.hoverSequence(null);
  }

  // what the user does

  press(event) {
    if (event.button !== 0 || !this.scale) return;
    if (event.offsetX < NAMES_WIDTH) {
      const row = this.rowAt(event);
      if (row) this.pin(row.name);
      return;
    }
    event.target.setPointerCapture(event.pointerId);
    this.scrubbing = true;
    this.scrub(event.offsetX);
  }

  move(event) {
    if (this.scrubbing) this.scrub(event.offsetX);
    else this.hover(this.rowAt(event), this.scale?.stepAt(event.offsetX));
  }

  /** Stand at the end of the step under a pixel, or of its phase where steps are wide. */
  scrub(x) {
    const { history } = this.viewer;
    const at = this.scale.stepAt(Math.max(NAMES_WIDTH, x));
    const step = this.log.at(Math.floor(at)) ?? this.log.steps[0];
    if (!step) return;
    let to = step.last;
    if (this.scale.stepWidth >= PHASES_SEEN && step.step === Math.floor(at)) {
      const events = history.slice(step.first, step.last + 1);
      const phase = events.map(each => PHASE_ENDS[each.phase]).find(end => end > at - step.step) ?? 1;
      to = events.findLast(each => PHASE_ENDS[each.phase] <= phase)?.seq ?? step.last;
    }
    this.viewer.goTo(to);
  }

  hover(row, at = null) {
    this.viewer.selection.hoverSequence(row?.name ?? null);
    const span = row && at >= this.scale.from ? spanAt(row, Math.floor(at)) : null;
    const words = span ? `${row.name} in step ${Math.floor(at)}: ${spanInWords(span)}` : "";
    if (words === this.hint) return;
    this.hint = words;
    this.viewer.redraw();
  }

  pin(name) {
    const { selection } = this.viewer;
    selection.pinSequence(name === selection.chosen ? null : name);
  }

  rowAt(event) {
    if (event.target !== this.rows || !this.scale) return null;
    return this.shown[Math.floor((event.offsetY + this.scroller.scrollTop) / ROW_HEIGHT)] ?? null;
  }

  wheel(event) {
    if (!this.scale || event.offsetX < NAMES_WIDTH || event.shiftKey || event.deltaY === 0) return;
    event.preventDefault();
    this.zoom(1.2 ** Math.sign(event.deltaY), this.scale.stepAt(event.offsetX));
  }

  /** Show `factor` times as many steps; the one at `around` stays in its place, or the newest while following. */
  zoom(factor, around) {
    const span = this.inReach(this.scale.span * factor);
    this.from = around - (around - this.scale.from) * (span / this.scale.span);
    this.span = span;
    this.paint();
  }

  /** Show these steps, and no longer what comes. */
  brush(from, span) {
    const { viewer } = this;
    if (viewer.following) viewer.goTo(viewer.history.newest);
    this.cursor = viewer.cursor; // seen already: the brush goes where it likes
    this.from = from;
    this.span = this.inReach(span);
    this.paint();
  }

  inReach(span) {
    return Math.max(FEWEST_STEPS, Math.min(span, this.log.lastStep + 2 - this.log.firstStep));
  }

  async loadOlder() {
    const { oldest } = this.viewer.history;
    this.older.disabled = true;
    await this.viewer.loadOlder();
    this.older.disabled = false;
    this.exhausted = this.viewer.history.oldest === oldest;
    if (!this.exhausted) this.brush(this.scale.from - this.scale.span / 2, this.scale.span);
    this.viewer.redraw();
  }

  onKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || !this.scale) return;
    const { viewer } = this;
    const acts = {
      ArrowLeft: () => viewer.clock.moveStep(-1), ArrowRight: () => viewer.clock.moveStep(1),
      Home: () => viewer.goTo(this.log.steps[0]?.last ?? viewer.history.oldest),
      End: () => viewer.goTo(viewer.history.newest),
      ArrowUp: () => this.walk(-1), ArrowDown: () => this.walk(1),
      Enter: () => { if (viewer.selection.sequence) this.pin(viewer.selection.sequence); },
      "+": () => this.zoom(1 / 1.5, this.cursorStep()), "-": () => this.zoom(1.5, this.cursorStep()),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  /** Look at the sequence of the row above or below. */
  walk(by) {
    const at = this.shown.findIndex(row => row.name === this.viewer.selection.sequence);
    const to = Math.max(0, Math.min(this.shown.length - 1, at < 0 ? 0 : at + by));
    const row = this.shown[to];
    if (!row) return;
    const { scroller } = this;
    const least = (to + 1) * ROW_HEIGHT - scroller.clientHeight;
    scroller.scrollTop = Math.max(least, Math.min(to * ROW_HEIGHT, scroller.scrollTop));
    this.viewer.selection.hoverSequence(row.name);
    this.spokenOf = this.viewer.map.seq;
    setText(this.spoken, rowInWords(row, this.viewer.map.step));
  }

  // painting

  /** Where the viewer's moment lies: its step, and how much of it is over. */
  cursorStep() {
    const { map } = this.viewer;
    return map.step + PHASE_ENDS[map.phase];
  }

  /** The steps to show. */
  choose(width) {
    const { viewer, log } = this;
    const all = log.lastStep + 1 - log.firstStep;
    if (viewer.history !== this.history) {
      this.history = viewer.history;
      this.span = null;
      this.height = ROW_HEIGHT; // of all rows seen so far, so that what lies below stays in its place
      this.exhausted = false;
      this.cursor = undefined;
    }
    const span = this.span ?? Math.max(FEWEST_STEPS, Math.min(Math.max(all + 1, 24), width / GOOD_STEP_WIDTH));
    if (viewer.following) this.from = Math.max(log.firstStep, log.lastStep + 1.5 - span);
    else if (viewer.cursor !== this.cursor) this.reveal(span);
    this.cursor = viewer.cursor;
    this.from = Math.max(log.firstStep, Math.min(this.from, log.lastStep + 1.5 - span));
    return new StepScale(this.from, span, width);
  }

  /** The user went to another moment: show it, if it is not shown. */
  reveal(span) {
    const at = this.cursorStep();
    if (at < this.from) this.from = at - span / 4;
    else if (at > this.from + span) this.from = at - (3 * span) / 4;
  }

  paint() {
    const { viewer, log, scroller } = this;
    const { map, history, theme, selection } = viewer;
    if (!map) return;
    const scroll = scroller.scrollTop;
    const key = [history.header.run, history.oldest, history.newest, map.seq, viewer.following, this.from, this.span,
      scroll, scroller.clientWidth, devicePixelRatio, theme.panel, selection.sequence, selection.chosen, this.hint,
      this.exhausted].join(" ");
    if (key === this.painted || scroller.clientWidth === 0 || log.steps.length === 0) return;
    const scale = this.scale = this.choose(scroller.clientWidth - NAMES_WIDTH - 2);
    this.shown = log.inOrder().filter(row => reaches(row, scale));
    const height = this.height = Math.max(this.height, ROW_HEIGHT * Math.min(TIMELINE_ROWS, this.shown.length));
    scroller.style.height = `${height}px`;
    this.filler.style.height = `${Math.max(0, ROW_HEIGHT * this.shown.length - height)}px`;
    const width = scale.left + scale.width;
    const look = { scale, theme, height, top: scroller.scrollTop, end: log.lastStep + 1,
      looked: selection.sequence, chosen: selection.chosen };
    const at = this.cursorStep();
    const cursor = { scale, theme, height, label: "", dim: !viewer.following };
    const rows = sizeCanvas(this.rows, width, height, devicePixelRatio);
    drawRows(rows, this.shown, look);
    drawCursor(rows, scale.x(at), cursor);
    const tokens = sizeCanvas(this.tokens, width, TOKENS_HEIGHT, devicePixelRatio);
    drawTokens(tokens, log, { scale, theme, height: TOKENS_HEIGHT });
    const label = cursorWords(map, viewer.event(map.seq));
    drawCursor(tokens, scale.x(at), { ...cursor, height: TOKENS_HEIGHT, label });
    this.overview.paint(log, scale, at, theme, devicePixelRatio);
    this.paintWords();
    if (this.inked !== theme) showTimelineLegend(this.legend, this.inked = theme);
    this.painted = key;
  }

  paintWords() {
    const { viewer, log, scale } = this;
    const { history } = viewer;
    const [from, to] = [Math.round(scale.from), Math.min(log.lastStep, Math.round(scale.to) - 1)];
    const range = `steps ${from}–${to} of ${log.firstStep}–${log.lastStep}`;
    setText(this.where, this.hint || `${range} · drag to look back, wheel to zoom`);
    const canLoad = viewer.loadOlder !== null && history.live && history.oldest > 0 && !this.exhausted;
    this.older.hidden = !canLoad || from > log.firstStep;
    const label = `timeline, ${range}: ${count(this.shown.length, "sequence")}. Left and Right move from step to step, `
      + "Up and Down from row to row, Enter pins one, plus and minus zoom";
    if (this.label !== label) this.rows.setAttribute("aria-label", this.label = label);
    if (document.activeElement === this.rows && !viewer.following && this.spokenOf !== viewer.map.seq) this.speak();
  }

  speak() {
    const { map } = this.viewer;
    this.spokenOf = map?.seq;
    if (this.scale) setText(this.spoken, stepInWords(this.log, map, this.viewer.event(map.seq)));
  }
}

/** Whether a row has anything to show on the scale: a span, or a gap between two of its spans. */
function reaches({ spans }, scale) {
  return spans.length > 0 && spans[0].from < scale.to && spans.at(-1).to + 1 > scale.from;
}

PANELS.timeline = { title: "Timeline", make: (box, viewer) => new Timeline(box, viewer) };
