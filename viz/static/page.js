// The page: one LiveSource for all its tabs, and in each tab a view of it.

const Pagelens = {
  source: null,

  /** Begin to follow the stream, once for all tabs of this page. */
  follow(version, view) {
    this.source ??= new LiveSource(version);
    this.source.follow(view);
    return view;
  },

  startLive(element, version) {
    this.live = this.follow(version, new LiveView(element));
    if (scenarioInAddress()) openTab("Scenarios");
  },

  startScenarios(element) {
    this.scenarios = new Scenarios(element.querySelector(".pagelens"));
  },

  startCalculator(element) {
    new Calculator(element.querySelector(".pagelens"));
  },

  startAbout(element, version) {
    const root = element.querySelector(".pagelens");
    this.follow(version, { root, onRun: history => showAbout(root, history.header) });
  },
};

/** The first tab: a viewer of the engine behind this page, with what its user may ask of it. */
class LiveView {
  constructor(element) {
    this.root = element.querySelector(".pagelens");
    this.parts = partsOf(element);
    this.controls = new Controls(this.root, this.parts, this);
    this.viewer = new Viewer(this.parts.viewer, {
      send: command => this.controls.send(command),
      loadOlder: async () => !this.replay.showing && Pagelens.source.loadOlder(),
    });
    this.viewer.painted = () => this.controls.paint(Pagelens.source);
    this.replay = new Replay(this.root, this.parts, this);
    this.run = null;
    addEventListener("hashchange", () => { if (this.source?.history) this.onRun(this.source.history); });
    document.addEventListener("pagelens:show", event => this.show(event.detail.sequence));
  }

  get source() { return Pagelens.source; }

  onRun(history) {
    const { header } = history;
    const isNew = this.run !== null && this.run !== header.run;
    this.note = isNew ? `new run ${header.run}` : "";
    this.run = header.run;
    this.onConnection();
    if (this.replay.showing) return; // who looks at a recording is left alone
    const { cursor } = this.viewer;
    if (isNew && cursor !== null) { // and so is who looks back
      this.replay.keep("The server has begun a new run. You still look at the one before it.");
      return;
    }
    const moment = this.momentInAddress(header.run);
    this.parts.intro.hidden = history.newest >= 0;
    this.viewer.open(history, moment?.seq ?? cursor);
    if (Number.isInteger(moment?.block)) this.viewer.selection.pin(moment.block);
    this.showFacts(header);
  }

  /** The moment that the address names, once; null if it names none, or one of another run, which is said. */
  momentInAddress(run) {
    const moment = momentOfLink(location.hash);
    if (moment.seq === null || scenarioInAddress()) return null;
    history.replaceState(null, "", location.pathname + location.search);
    if (moment.run === null || moment.run === run) return moment;
    this.replay.say(`The link leads to run ${moment.run}, which is over: this is run ${run}. A saved recording would still have it.`);
    return null;
  }

  showFacts(header) {
    const pool = `${header.num_blocks} blocks of ${header.block_size}`;
    setText(this.parts.facts, [modelName(header), kernelWords(header.kernel), pool].join(" · "));
    this.parts.facts.title = header.kernel.why ?? "";
  }

  /** Show the engine again, after a recording. */
  backToEngine() {
    this.viewer.open(this.source.history);
    this.showFacts(this.source.history.header);
  }

  /** Look at a sequence: at the moment before it gave its blocks back, if it has ended. */
  show(sequence) {
    if (this.replay.showing) this.replay.leave();
    const { viewer, source: { history } } = this;
    let end = history.map.sequences[sequence]?.status === "finished" ? history.newest + 1 : undefined;
    while (end !== undefined && history.event(end)?.sequence !== sequence) end = history.previous("SequenceFinished", end);
    if (end !== undefined) viewer.goTo(end - 1);
    viewer.selection.pinSequence(sequence);
  }

  onEvents(events) {
    this.parts.intro.hidden = true;
    if (!this.replay.showing) this.viewer.take(events);
    else this.controls.paint(this.source);
  }

  onLoop() {
    if (this.source.history) this.controls.paint(this.source);
  }

  onConnection() {
    const open = this.source?.connected ?? false;
    const words = open ? ["live", this.note].filter(Boolean).join(" · ") : "connection lost, trying again…";
    setText(this.parts.connection, words);
    this.parts.connection.classList.toggle("lost", !open);
  }
}
