// The rows of the event list: one event as one plain sentence, below it its reason, its cause and its line of source.

const SENTENCES_KEPT = 4096;

/** Kinds whose sentence needs the whole picture as of the event. */
const NEED_PICTURE = new Set(["SequenceForked", "BlockCopied", "SequenceFinished"]);

class EventRows {
  constructor(viewer, history) {
    this.viewer = viewer;
    this.history = history;
    this.picture = null; // of the last event that needed one, to be carried on
    this.elements = new Map(); // seq -> row, of those shown
    this.sentences = new Map(); // seq -> {title, text}
  }

  /** Show some events in `box`, the first of them as row `first` of the list; rows that stay are left alone. */
  show(box, seqs, first, height) {
    const rows = seqs.map((seq, i) => this.row(seq, first + i, height));
    const present = box.children;
    if (rows.length !== present.length || rows.some((row, i) => row !== present[i])) box.replaceChildren(...rows);
    this.elements = new Map(seqs.map((seq, i) => [seq, rows[i]]));
  }

  row(seq, index, height) {
    const row = this.elements.get(seq) ?? this.makeRow(this.history.event(seq));
    const now = this.viewer.map.seq;
    row.className = ["event", seq === now ? "here" : "", seq > now ? "later" : ""].filter(Boolean).join(" ");
    row.setAttribute("aria-selected", String(seq === now));
    row.setAttribute("aria-rowindex", index + 1);
    row.style.height = `${height}px`;
    return row;
  }

  makeRow(event) {
    const { title, text } = this.sentence(event);
    const cause = this.history.event(event.cause);
    const meta = make("p", "meta", {}, `step ${event.step} ${event.phase} · ${event.why.replaceAll("_", " ")}`);
    if (event.cause >= 0) {
      meta.append(" ← ", eventLink(this.viewer, event.cause, cause ? inShort(cause) : `event ${event.cause}`));
    }
    const source = sourceOf(event, this.history.header);
    if (source) meta.append(" · ", make("code", "", {}, source));
    return make("div", "event", { role: "row", "data-seq": event.seq, "data-kind": event.kind },
      make("span", "seq", { role: "gridcell" }, event.seq.toLocaleString("en")),
      make("div", "", { role: "gridcell" },
        make("p", "sentence", { title: `${title}. ${text}` }, make("b", "", {}, `${title}. `), text), meta));
  }

  /** An event in words, written while the picture is as the event left it where the words need that. */
  sentence(event) {
    const { history } = this;
    if (!this.sentences.has(event.seq)) {
      let map = { block_size: history.header.block_size, sequences: {} };
      if (NEED_PICTURE.has(event.kind)) map = this.picture = history.pictureAt(event.seq, this.picture);
      if (this.sentences.size >= SENTENCES_KEPT) this.sentences.clear();
      this.sentences.set(event.seq, sentenceOf(event, { map, event: seq => history.event(seq) }));
    }
    return this.sentences.get(event.seq);
  }
}
