// The event list: every event of the history as one plain sentence, with its reason, its cause and its line of source.
// It holds as many rows as can be seen, so a history of a million events costs no more than one of twenty.
//
//     9,727  step 31 plan   Released. A.1 lets go of block 6 ...
//     9,728  step 31 plan   Copy-on-write. A.2 writes position 74 ...   <- you are here: up and down move you
//     9,729  step 31 plan   Released. ...                                  (dimmed: not yet)

const EVENT_EMS = 3.5; // em
const MOST_PIXELS = 6e6; // of a scrolled element: browsers end somewhere above
const SEARCH_MS = 12; // at a time

class EventList {
  constructor(box, viewer) {
    this.viewer = viewer;
    this.filter = new EventFilter(viewer, () => this.refilter());
    this.rows = make("div", "rows", { role: "rowgroup" });
    this.spacer = make("div", "spacer", { role: "presentation" }, this.rows);
    this.scroller = make("div", "event-list", { tabindex: "0", role: "grid",
      "aria-label": "events: up and down move you to the event before and after" }, this.spacer);
    this.status = make("p", "hint", { role: "status" });
    this.top = 0; // px, of the list as if it had its full height
    this.sticks = true; // to the end, while the viewer follows
    box.append(this.filter.box, this.scroller, this.status);
    this.scroller.addEventListener("scroll", () => this.onScroll());
    this.scroller.addEventListener("wheel", event => this.onWheel(event), { passive: false });
    this.scroller.addEventListener("click", event => this.onClick(event));
    this.scroller.addEventListener("keydown", event => this.onKey(event));
    this.scroller.addEventListener("pointerover", event => this.point(event.target.closest("[data-seq]")));
    this.scroller.addEventListener("pointerleave", () => this.point(null));
    this.observer = new ResizeObserver(() => this.measure());
    this.observer.observe(this.scroller);
    this.measure();
  }

  /** Sizes are read when they change, not at every painting, for which the browser would lay out the page at once. */
  measure() {
    this.seen = this.scroller.clientHeight;
    this.rowHeight = Math.round(parseFloat(getComputedStyle(this.scroller).fontSize) * EVENT_EMS);
    this.paint();
  }

  close() {
    clearTimeout(this.timer);
    this.observer.disconnect();
  }

  /** Show the events about what is selected: "block" or "sequence". */
  showOnly(subject) {
    this.filter.about.value = subject;
    this.refilter();
    this.scroller.scrollIntoView({ block: "nearest" });
    this.scroller.focus({ preventScroll: true });
  }

  refilter() {
    this.matches = null;
    this.paint();
  }

  paint() {
    const { history, map, following } = this.viewer;
    if (!history || this.seen === 0) return;
    if (history !== this.history) this.begin(history);
    const subject = JSON.stringify(this.filter.subject());
    if (!this.matches || this.matches.isOutdated || subject !== this.subject) {
      this.subject = subject;
      this.matches = new EventMatches(history, this.filter.wanted());
      this.seq = null;
    }
    this.matches.update(SEARCH_MS);
    clearTimeout(this.timer);
    if (this.matches.progress < 1) this.timer = setTimeout(() => this.paint());
    this.filter.paint();
    const moved = this.seq !== map.seq;
    this.seq = map.seq;
    if (following && this.sticks) this.top = Infinity;
    else if (moved && !following) this.reveal(this.matches.indexAt(map.seq));
    this.draw();
    this.say();
  }

  begin(history) {
    this.history = history;
    this.matches = null;
    this.sticks = true;
    this.eventRows = new EventRows(this.viewer, history);
  }

  say() {
    const { matches, history } = this;
    const total = Math.max(0, history.newest - history.oldest + 1);
    const number = value => value.toLocaleString("en");
    const parts = [matches.all ? `${number(total)} events` : `${number(matches.length)} of ${number(total)} events`,
      this.filter.subjectWords(), matches.progress < 1 ? `searched ${Math.floor(100 * matches.progress)} %` : ""];
    setText(this.status, parts.filter(Boolean).join(" · "));
  }

  // scrolling

  get full() { return this.matches.length * this.rowHeight; }

  /** Pixels of the list that one pixel of the scroll bar stands for. */
  get scale() {
    const most = Math.min(this.full, MOST_PIXELS) - this.seen;
    return most > 0 ? (this.full - this.seen) / most : 1;
  }

  reveal(index) {
    const start = Math.max(0, index) * this.rowHeight;
    if (start < this.top) this.top = start - (this.seen - this.rowHeight) / 2;
    if (start + this.rowHeight > this.top + this.seen) this.top = start - (this.seen - this.rowHeight) / 2;
  }

  onScroll() {
    const { scrollTop } = this.scroller;
    if (!this.matches || Math.abs(scrollTop - this.scrolledTo) < 1) return; // our own doing
    this.scrolledTo = scrollTop;
    this.scrollTo(scrollTop * this.scale);
  }

  /** Where the scroll bar is too coarse, the wheel moves by rows all the same. */
  onWheel(event) {
    if (!this.matches || this.scale === 1 || event.ctrlKey) return;
    event.preventDefault();
    this.scrollTo(this.top + event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_LINE ? this.rowHeight : 1));
  }

  scrollTo(top) {
    this.top = top;
    this.sticks = top >= this.full - this.seen - this.rowHeight / 2;
    this.draw();
  }

  // rows

  draw() {
    const { matches, rowHeight, scroller } = this;
    const before = this.scrolledTo;
    this.spacer.style.height = `${Math.min(this.full, MOST_PIXELS)}px`;
    this.top = Math.max(0, Math.min(this.full - this.seen, this.top));
    const first = Math.floor(this.top / rowHeight);
    const last = Math.min(matches.length, Math.ceil((this.top + this.seen) / rowHeight));
    this.scrolledTo = this.top / this.scale;
    if (this.scrolledTo !== before) scroller.scrollTop = this.scrolledTo;
    this.rows.style.transform = `translateY(${this.scrolledTo - (this.top - first * rowHeight)}px)`;
    const seqs = [];
    for (let index = first; index < last; index++) seqs.push(matches.at(index));
    this.eventRows.show(this.rows, seqs, first, rowHeight);
    scroller.setAttribute("aria-rowcount", matches.length);
  }

  /** Outline on the map the blocks that the event under the pointer names. */
  point(row) {
    const event = row && this.history.event(Number(row.dataset.seq));
    if (event === this.pointed) return;
    this.pointed = event;
    this.viewer.highlight(event ? blocksOf(event) : []);
  }

  // moving the viewer

  onClick(event) {
    const row = event.target.closest("[data-seq]");
    if (row && !event.target.closest("button")) this.viewer.goTo(Number(row.dataset.seq));
  }

  async onKey(event) {
    const page = Math.max(1, Math.floor(this.seen / this.rowHeight) - 1);
    const steps = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || !this.matches || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    await this.move(steps[event.key]);
  }

  /** To the `by`-th matching event from here, fetching older ones where the list begins. */
  async move(by) {
    const { viewer } = this;
    const here = viewer.map.seq;
    let from = this.matches.indexAt(here);
    while (by < 0 && by > -Infinity && from + by < 0 && await viewer.loadOlder?.()) {
      this.refilter();
      from = this.matches.indexAt(here);
    }
    if (this.matches.length === 0 || (by < 0 && from < 0)) return;
    const between = by < 0 && this.matches.at(from) !== here; // the cursor stands after a match: that one is the last
    const to = Math.max(0, Math.min(this.matches.length - 1, from + by + (between ? 1 : 0)));
    viewer.goTo(this.matches.at(to));
    const { title, text } = this.eventRows.sentence(this.history.event(this.matches.at(to)));
    setText(viewer.parts.spoken, `${title}. ${text}`);
  }
}

PANELS.events = { title: "Events", make: (box, viewer) => new EventList(box, viewer) };
