// A recording instead of the engine: dropped on the page or chosen from the disk; the engine runs on meanwhile.

class Replay {
  constructor(root, parts, view) {
    this.parts = parts;
    this.view = view;
    this.showing = false;
    root.addEventListener("dragover", event => {
      event.preventDefault();
      root.classList.add("dropping");
    });
    root.addEventListener("dragleave", event => {
      if (!root.contains(event.relatedTarget)) root.classList.remove("dropping");
    });
    root.addEventListener("drop", event => {
      event.preventDefault();
      root.classList.remove("dropping");
      const [file] = event.dataTransfer.files;
      if (file) this.load(file);
    });
    this.input = make("input", "unseen",
      { type: "file", accept: ".kvtrace,.gz", "aria-label": "recording to open", tabindex: "-1" });
    this.input.addEventListener("change", () => { if (this.input.files[0]) this.load(this.input.files[0]); });
    const title = "look at a .kvtrace; it may also be dropped on the page";
    const open = makeButton("open…", () => this.input.click(), { title });
    const record = make("a", "button", { href: new URL("pagelens/recording", document.baseURI), download: "",
      title: "the events that are held now, as a .kvtrace" }, "save recording");
    view.viewer.clock.carry.append(record, open, this.input);
  }

  /** Show the recording in `file`, and say what is wrong with it if something is. */
  async load(file) {
    const stop = new AbortController();
    this.reading?.abort();
    this.reading = stop;
    this.showing = true;
    let opened = null;
    try {
      await readRecording(await unpacked(file), history => {
        stop.signal.throwIfAborted(); // another was opened, or its viewer has left it
        if (!opened) this.open(opened = history);
        else if (this.view.viewer.following) this.view.viewer.goLive();
        const unknown = Object.keys(history.map.unknown_kinds);
        const number = (history.newest + 1).toLocaleString("en");
        this.say(`${file.name}: ${number} events${history.growing ? ", reading…" : ""}`
          + (unknown.length ? `; this page knows no ${unknown.join(", ")} and passed over them` : ""));
      });
    } catch (error) {
      if (stop.signal.aborted) return;
      if (!opened) this.leave();
      this.say(`${file.name}: ${error.message}`);
    }
    this.input.value = "";
  }

  /** Go on showing what the viewer shows, though the engine behind it is in another run. */
  keep(words) {
    this.view.viewer.history.live = false;
    this.showing = true;
    this.say(words);
    this.view.viewer.redraw();
  }

  open(history) {
    this.view.viewer.open(history);
    this.view.showFacts(history.header);
  }

  say(words) {
    const back = makeButton(this.showing ? "back to the engine" : "close", () => {
      if (this.showing) this.leave();
      this.parts.banner.hidden = true;
    });
    this.parts.banner.replaceChildren(words, " ", back);
    this.parts.banner.hidden = false;
  }

  leave() {
    this.reading?.abort();
    this.showing = false;
    this.view.backToEngine();
  }
}
