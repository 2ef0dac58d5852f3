// The page: messages change the RunState at once, the picture follows in the next animation frame.

const Pagelens = {
  state: null,
  stream: null,
  views: new Set(), // each with root, onMessage(message) and perhaps onEvent(event)

  /** Begin to follow the stream, once for all tabs of this page. */
  connect(version) {
    if (this.stream) return;
    this.state = new RunState();
    let lost = false; // events are missing, a snapshot is on its way
    this.stream = connectToStream(version, message => {
      if (message.type === "snapshot") lost = false;
      if (lost && message.type === "events") return;
      try {
        this.state.receive(message, event => { for (const view of this.views) view.onEvent?.(event); });
      } catch (error) {
        console.warn("Pagelens takes a new snapshot:", error.message);
        lost = true;
        this.stream.resync();
        return;
      }
      for (const view of this.views) {
        if (view.root.isConnected) view.onMessage(message);
        else this.views.delete(view); // Gradio took it off the page and tells nobody
      }
    });
  },

  startLive(element, version) {
    this.connect(version);
    this.views.add(new LiveView(element, this.state));
  },

  startAbout(element, version) {
    this.connect(version);
    const box = element.querySelector(".pagelens");
    const show = () => { if (this.state.header) showAbout(box, this.state.header); };
    this.views.add({ root: box, onMessage: message => { if (message.type === "snapshot") show(); } });
    show();
  },
};

class LiveView {
  constructor(element, state) {
    this.state = state;
    this.root = element.querySelector(".pagelens");
    this.parts = partsOf(element);
    this.run = null;
    this.stale = true; // the picture is older than the map
    this.frame = 0;
    this.selection = new Selection(() => this.redraw(), () => this.speak());
    this.blockMap = new BlockMap(this.parts, this.selection);
    this.controls = new Controls(this.root, this.parts);
    const abort = request => this.controls.send({ command: "abort", request });
    this.tables = new Tables(this.parts.tables, this.selection, abort);
    this.headline = new Headline();
    this.readTheme();
    new ResizeObserver(() => this.redraw()).observe(this.parts.map);
    new MutationObserver(() => this.readTheme()).observe(document.body, { attributeFilter: ["class"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.readTheme());
  }

  readTheme() {
    this.theme = new Theme(this.root);
    if (this.state.map) drawLegend(this.parts.legend, this.theme, this.state.map.block_size);
    this.redraw();
  }

  onEvent(event) {
    this.blockMap.note(event, performance.now());
    this.headline.note(event, this.state);
  }

  onMessage(message) {
    if (message.type === "connection") this.showConnection(message.open);
    if (message.type === "snapshot") this.beginRun();
    this.redraw();
  }

  beginRun() {
    const { header } = this.state;
    const isNew = this.run !== null && this.run !== header.run;
    this.run = header.run;
    this.showConnection(true, isNew ? `new run ${header.run}` : "");
    this.blockMap.forget();
    if (isNew) this.selection.clear();
    this.headline = new Headline();
    for (const event of this.state.recent) this.headline.note(event, this.state);
    drawLegend(this.parts.legend, this.theme, this.state.map.block_size);
    const model = header.model.name?.split(/[\\/]/).pop() ?? "model";
    const pool = `${header.num_blocks} blocks of ${header.block_size}`;
    setText(this.parts.facts, [model, kernelWords(header.kernel), pool].join(" · "));
    this.parts.facts.title = header.kernel.why ?? "";
  }

  showConnection(open, note = "") {
    const words = open ? ["live", note].filter(Boolean).join(" · ") : "connection lost, trying again…";
    setText(this.parts.connection, words);
    this.parts.connection.classList.toggle("lost", !open);
  }

  /** Paint in the next frame, however often it is asked for. */
  redraw() {
    this.stale = true;
    this.frame ||= requestAnimationFrame(now => this.paint(now));
  }

  paint(now) {
    this.frame = 0;
    const { state, parts } = this;
    if (!this.root.isConnected || !state.map) return;
    if (this.stale) {
      this.stale = false;
      this.holders = holdersOfBlocks(state.map);
      this.blockMap.paint(state.map, this.holders, this.theme);
      this.tables.paint(state.map, this.holders, this.theme, state.header.config);
      this.controls.paint(state);
      this.paintCounts();
      const { block, pinned } = this.selection;
      showDetail(parts.detail, state.map, block, this.holders, block !== null && block === pinned);
      this.redrawHeadline();
    }
    const moving = this.blockMap.paintOverlay(state.map, this.theme, now);
    if (moving) this.frame ||= requestAnimationFrame(later => this.paint(later));
  }

  paintCounts() {
    const { map } = this.state;
    const { used, cached, blank } = countStates(map);
    const { waiting, running, preempted } = countStatuses(map);
    setText(this.parts.pool, `${used} used · ${cached + blank} free = ${cached} cached + ${blank} blank · `
      + `${running} running · ${waiting + preempted} waiting`);
    const shared = map.ref_count.filter(references => references > 1).length;
    for (const [state, number] of Object.entries({ used, cached, blank, shared })) {
      const counter = this.parts.legend.querySelector(`[data-count=${state}]`);
      if (counter) setText(counter, String(number));
    }
  }

  redrawHeadline() {
    const { state, parts } = this;
    if (!state.map) return;
    const told = this.headline.current(performance.now(), state.map.halted_after !== "");
    setText(parts["headline-title"], `${told.title}.`);
    const more = told.alike ? ` (And ${told.alike} more like it in this step.)` : "";
    setText(parts["headline-text"], told.text + more);
    setText(parts["headline-why"], told.why);
    clearTimeout(this.headlineTimer);
    if (told !== (this.headline.best ?? told)) this.headlineTimer = setTimeout(() => this.redrawHeadline(), 300);
  }

  speak() {
    const { block } = this.selection;
    const { map } = this.state;
    if (block !== null) setText(this.parts.spoken, blockInWords(map, block, holdersOfBlocks(map)));
  }
}
