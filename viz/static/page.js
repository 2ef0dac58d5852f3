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
    document.addEventListener("pagelens:show", event => this.viewer.selection.pinSequence(event.detail.sequence));
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
    const moment = isNew ? null : momentInAddress(header.run);
    this.viewer.open(history, isNew ? null : moment?.seq ?? cursor);
    if (moment?.block !== undefined) this.viewer.selection.pin(moment.block);
    this.showFacts(header);
  }

  showFacts(header) {
    const model = header.model.name?.split(/[\\/]/).pop() ?? "model";
    const pool = `${header.num_blocks} blocks of ${header.block_size}`;
    setText(this.parts.facts, [model, kernelWords(header.kernel), pool].join(" · "));
    this.parts.facts.title = header.kernel.why ?? "";
  }

  /** Show the engine again, after a recording. */
  backToEngine() {
    this.viewer.open(this.source.history);
    this.showFacts(this.source.history.header);
  }

  onEvents(events) {
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

/** The moment that the address names, once: {seq, block}; null if it names none, or one of another run. */
function momentInAddress(run) {
  const named = new URLSearchParams(location.hash.slice(1));
  if (!named.has("seq") || (named.has("run") && named.get("run") !== run)) return null;
  history.replaceState(null, "", location.pathname + location.search);
  const wholeNumber = name => (/^\d+$/.test(named.get(name)) ? Number(named.get(name)) : undefined);
  return { seq: wholeNumber("seq"), block: wholeNumber("block") };
}
