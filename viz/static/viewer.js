// Viewer: one run on the screen, at the moment that its user looks at. The live page, a scenario, a loaded recording
// and an exported file are all viewers of a History; nothing is drawn from anything else.
//
// Its own clock is the cursor: null follows the newest event, a number is the event after which the picture stands.

const VIEWER_MARKUP = `
  <section class="headline" data-part="headline" aria-label="what just happened and why">
    <p><b data-part="headline-title"></b> <span data-part="headline-text"></span></p>
    <p class="why" data-part="headline-why"></p>
  </section>
  <div class="you" role="group" aria-label="your own clock" data-part="you"></div>
  <div class="tools" data-part="tools"></div>
  <div class="columns">
    <section class="panel" aria-label="physical blocks">
      <h2>Physical blocks <small data-part="pool"></small></h2>
      <div class="map" data-part="map">
        <canvas class="blocks" data-part="blocks"></canvas>
        <canvas class="overlay" data-part="overlay" tabindex="0" role="application"
          aria-label="block map: arrow keys move from block to block, Enter pins one"></canvas>
      </div>
      <ul class="legend" data-part="legend"></ul>
      <p class="unseen" data-part="spoken" aria-live="polite"></p>
    </section>
    <div class="side">
      <section class="panel detail" aria-label="what is looked at" data-part="detail"></section>
      <section class="panel block-tables" aria-label="block tables">
        <h2>Block tables <small>logical → physical</small></h2>
        <div class="tables" data-part="tables"></div>
      </section>
    </div>
  </div>
  <div class="panels" data-part="panels"></div>`;

const FRAME_MS = 25;
const BUSY_MS = 100; // where events come more often than this, they bring the next frame of what moves

class Viewer {
  /**
   * `send(command)` asks the engine for something and `loadOlder()` fetches what came before the history; both only
   * where there is an engine behind this viewer.
   */
  constructor(root, { send = null, loadOlder = null } = {}) {
    this.root = root;
    root.inert = true; // until there is something to look at
    root.innerHTML = VIEWER_MARKUP; // constant: what a user or a model wrote never goes in this way
    this.parts = partsOf(root);
    this.send = send;
    this.loadOlder = loadOlder;
    this.place = null; // what a copied link names instead of the run: {scenario, variant}
    this.history = null;
    this.map = null;
    this.cursor = null;
    this.highlighted = [];
    this.stale = true; // the picture is older than the map
    this.frame = 0;
    this.lastFrame = -Infinity;
    this.taken = -Infinity; // when events last came while they were followed,
    this.pause = Infinity; // and how long after those before
    this.moving = 0;
    this.selection = new Selection(() => this.redraw(), () => this.speak(), () => this.map);
    this.blockMap = new BlockMap(this.parts, this.selection, {
      header: () => this.header, highlighted: () => this.highlighted,
    });
    this.detail = new BlockDetail(this.parts.detail, this);
    this.tables = new Tables(this.parts.tables, this);
    this.clock = new ViewerClock(this.parts.you, this);
    this.panels = new Panels(this.parts.panels, this);
    this.headline = new Headline();
    this.readTheme();
    this.observers = [new ResizeObserver(() => this.redraw()), new MutationObserver(() => this.readTheme())];
    this.observers[0].observe(this.parts.map);
    this.observers[1].observe(document.body, { attributeFilter: ["class"] });
    this.closing = new AbortController();
    const { signal } = this.closing;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.readTheme(), { signal });
    root.addEventListener("keydown", event => {
      this.selection.onKey(event);
      this.clock.onKey(event);
    });
  }

  get header() { return this.history?.header ?? null; }
  get following() { return this.cursor === null; }

  /** Whether commands can be sent: there is an engine, and this viewer looks at its present. */
  get live() { return this.send !== null && this.history?.live === true; }

  /** Begin to show a history, at `cursor` (null: its newest event, and what follows). */
  open(history, cursor = null) {
    const isNew = this.history?.header.run !== history.header.run;
    this.root.inert = false;
    this.history = history;
    this.map = null; // a picture of another history is no beginning for one of this
    this.blockMap.forget();
    this.headline = new Headline();
    if (isNew) this.selection.clear();
    if (cursor === null) this.goLive();
    else this.goTo(cursor);
    this.readTheme();
  }

  /** The history has new events at its end. */
  take(events) {
    if (this.following) {
      const now = performance.now();
      this.pause = now - this.taken;
      this.taken = now;
      for (const event of events) {
        this.blockMap.note(event, now);
        this.headline.note(event, this);
      }
    }
    this.redraw();
  }

  /** Take it off the page, and let go of what would keep it and its history in memory. */
  close() {
    this.closing.abort();
    for (const observer of this.observers) observer.disconnect();
    clearTimeout(this.headlineTimer);
    clearTimeout(this.moving);
    this.tables.close();
    for (const name of Object.keys(this.panels.open)) this.panels.hide(name);
    this.root.remove();
  }

  // the user's clock

  /** Stand after event `seq`, or as near to it as the history goes. */
  goTo(seq) {
    const { history } = this;
    const to = Math.max(history.oldest - 1, Math.min(history.newest, seq));
    const one = to === this.map?.seq + 1 ? history.event(to) : null;
    if (!one) this.blockMap.forget();
    this.map = history.pictureAt(to, this.following ? null : this.map);
    this.cursor = to;
    if (one) this.blockMap.note(one, performance.now());
    this.redraw();
  }

  /** Follow the newest event. */
  goLive() {
    this.cursor = null;
    this.map = this.history.map;
    this.blockMap.forget();
    for (const event of this.history.slice(this.history.newest - 200, this.history.newest + 1)) {
      this.headline.note(event, this);
    }
    this.redraw();
  }

  /** An event by number, for sentences and causes. */
  event(seq) {
    return this.history?.event(seq);
  }

  /** Outline blocks on the map until told otherwise. */
  highlight(blocks) {
    this.highlighted = blocks;
    this.redraw();
  }

  // painting

  readTheme() {
    this.theme = new Theme(this.root);
    this.redraw();
  }

  /** Paint soon, however often it is asked for. */
  redraw() {
    this.stale = true;
    this.schedule();
  }

  schedule() {
    this.frame ||= requestAnimationFrame(now => this.paint(now));
  }

  /** At most every other frame, 30 a second, so that four viewers of a large pool fit on two cores. */
  paint(now) {
    this.frame = 0;
    if (now - this.lastFrame < FRAME_MS) {
      this.schedule();
      return;
    }
    this.lastFrame = now;
    const { map, parts } = this;
    if (!this.root.isConnected || !map) return;
    if (this.stale) {
      this.stale = false;
      this.holders = holdersOfBlocks(map);
      this.blockMap.paint(map, this.holders, this.theme);
      this.tables.paint();
      this.paintCounts();
      this.detail.paint();
      this.redrawHeadline();
      this.clock.paint();
      this.panels.paint();
      this.painted?.();
    }
    const moving = this.blockMap.paintOverlay(map, this.theme, now);
    if (moving) this.moveOn();
  }

  /** The next frame of what moves. While events come in quickly the next of them brings it: a frame more costs as much. */
  moveOn() {
    clearTimeout(this.moving);
    if (Math.max(this.pause, performance.now() - this.taken) > BUSY_MS) this.schedule();
    else this.moving = setTimeout(() => this.schedule(), BUSY_MS);
  }

  paintCounts() {
    const { map } = this;
    const size = `${count(map.num_blocks, "block")} of ${count(map.block_size, "token")}`;
    const { used, cached, blank } = countStates(map);
    const { waiting, running, preempted } = countStatuses(map);
    setText(this.parts.pool, `${size} · ${used} used · ${cached + blank} free = ${cached} cached + ${blank} blank · `
      + `${running} running · ${waiting + preempted} waiting`);
    const shared = map.ref_count.filter(references => references > 1).length;
    for (const [state, number] of Object.entries({ used, cached, blank, shared })) {
      const counter = this.parts.legend.querySelector(`[data-count=${state}]`);
      if (counter) setText(counter, String(number));
    }
  }

  /** Live: the most telling event of the newest step. In the past: the event at the cursor. */
  redrawHeadline() {
    const { parts, map } = this;
    const told = this.following ? this.headline.current(performance.now(), map.halted_after !== "")
      : headlineAt(this.event(this.cursor), this);
    setText(parts["headline-title"], `${told.title}.`);
    const text = told.text + (told.alike ? ` (And ${told.alike} more like it in this step.)` : "");
    setText(parts["headline-text"], text);
    parts["headline-text"].title = text;
    const ago = map.halted_after !== "" && told.seq < map.seq ? `${count(map.seq - told.seq, "event")} ago · ` : "";
    setText(parts["headline-why"], ago + told.why);
    parts["headline-why"].title = told.why;
    clearTimeout(this.headlineTimer);
    if (this.following && told !== (this.headline.best ?? told)) {
      this.headlineTimer = setTimeout(() => this.redrawHeadline(), 300);
    }
  }

  speak() {
    const { block } = this.selection;
    if (block !== null) setText(this.parts.spoken, blockInWords(this.map, block, holdersOfBlocks(this.map)));
  }
}
