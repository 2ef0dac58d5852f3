// The choice of what the kernel view traces next: a sequence, a layer, a KV head, and how many keys a tile has.

// As `TILES` of engine/kernel_trace.py; 0: as the launch has it.
const TILES_OFFERED = [0, 16, 32, 64, 128, 256, 512, 1024];

/** What to trace next: four choices and a button, there only while an engine can be asked. */
class TracePicker {
  constructor(viewer, ask) {
    this.viewer = viewer;
    this.sequence = this.select("sequence");
    this.sequence.addEventListener("change", () => { this.chosen = this.sequence.value; });
    this.layer = this.select("layer");
    this.head = this.select("KV head");
    this.tile = this.select("keys a tile");
    this.go = makeButton("trace the next step", () => ask({
      command: "trace", sequence: this.sequence.value, layer: Number(this.layer.value),
      kv_head: Number(this.head.value), tile: Number(this.tile.value),
    }), { class: "primary" });
    const labelled = select => make("label", "", {}, `${select.getAttribute("aria-label")} `, select);
    this.box = make("p", "picker", {}, ...[this.sequence, this.layer, this.head, this.tile].map(labelled), this.go);
  }

  select(label) {
    return make("select", "", { "aria-label": label });
  }

  paint() {
    const { viewer } = this;
    this.box.hidden = !viewer.live;
    if (!viewer.live) return;
    const { num_layers = 0, num_kv_heads = 0 } = viewer.header.model;
    const unfinished = Object.values(viewer.history.map.sequences).filter(view => view.status !== "finished");
    const fresh = offer(this.tile, TILES_OFFERED, tile => (tile ? String(tile) : "as launched"));
    if (fresh) this.tile.value = "32";
    offer(this.layer, Array.from({ length: num_layers }, (_, layer) => layer));
    offer(this.head, Array.from({ length: num_kv_heads }, (_, head) => head));
    offer(this.sequence, unfinished.map(view => view.sequence));
    this.suggest(unfinished);
    this.go.disabled = unfinished.length === 0 || num_layers === 0;
  }

  /** Until a user chooses: a sequence of several blocks, since one block has no walk to show. */
  suggest(unfinished) {
    const blocks = name => unfinished.find(view => view.sequence === name)?.table.length ?? 0;
    const { value } = this.sequence;
    if (value === this.chosen || blocks(value) > 1) return;
    const most = unfinished.reduce((best, view) => Math.max(best, view.table.length), 0);
    const longest = unfinished.find(view => view.table.length === most);
    if (most > blocks(value)) this.sequence.value = longest.sequence;
  }
}

/** Give a select these options, if it does not have them; what was chosen stays. Whether anything changed. */
function offer(select, values, words = String) {
  const signature = values.join();
  if (select.dataset.offered === signature) return false;
  const chosen = select.value;
  select.dataset.offered = signature;
  select.replaceChildren(...values.map(value => make("option", "", { value }, words(value))));
  if (values.some(value => String(value) === chosen)) select.value = chosen;
  return true;
}
