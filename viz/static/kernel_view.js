// The kernel view: what the attention kernel read for one sequence, layer and KV head, from the newest KernelTraced
// event at the viewer's moment.
//
//   [sequence] [layer] [KV head] [keys a tile]  (trace the next step)          really loaded (interpreter)
//   K and V come from 5 blocks: 44, 38, 47, 35, 46. That is what the block table says.
//   ‹ tile 2 of 3 ›   [44][38]|[47][35]|[46]    the blocks of the tile under the cursor are lit, here and on the map
//                     head · running max · old sum × exp(m − m′) + this tile's = running sum
//   grid     KV head 0  [ ][#][ ]     a program; those of the sequence can be chosen
//            KV head 1  [ ][ ][ ]

const GRID_SHOWN = 384; // programs; of a larger grid only the sequence's own are drawn
const WHOLE_WALK = -1; // instead of the number of a tile

class KernelView {
  constructor(box, viewer) {
    Object.assign(this, { viewer, history: null, event: null, program: 0, tile: WHOLE_WALK, asked: null });
    this.picker = new TracePicker(viewer, command => this.ask(command));
    this.hint = make("p", "hint");
    this.verdict = make("p", "verdict");
    this.facts = make("span");
    this.launch = make("p", "hint");
    this.origin = make("b", "origin");
    this.grid = make("div", "kernel-grid");
    this.words = make("p", "program");
    this.rows = make("details", "rows");
    this.table = make("div", "kernel-table");
    this.where = make("b", "where", { "aria-live": "polite" });
    this.back = this.button("‹", "the tile before (Left)", -1);
    this.on = this.button("›", "the next tile (Right)", 1);
    this.text = make("p", "tokens");
    this.numbers = make("table", "sheet");
    const label = "the walk: Left and Right go from tile to tile";
    this.walk = make("div", "walk", { tabindex: "0", role: "group", "aria-label": label },
      make("p", "moves", {}, this.back, this.where, this.on), this.table, this.text, this.numbers);
    this.walk.addEventListener("keydown", event => this.onKey(event));
    this.body = make("div", "kernel-body", { hidden: "" }, this.verdict,
      make("p", "facts", {}, this.origin, " ", this.facts), this.walk, this.launch, this.grid, this.words, this.rows);
    box.append(this.picker.box, this.hint, this.body);
  }

  button(words, title, by) {
    return makeButton(words, () => this.move(by), { title, "aria-label": title });
  }

  async ask(command) {
    const answer = await this.viewer.send(command);
    this.asked = answer ? { ...command, after: this.viewer.history.newest } : null;
    this.viewer.redraw();
  }

  onKey(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.move(moves[event.key]);
  }

  /** On the walk: from the whole of it to its first tile, and on to the last. */
  move(by) {
    const last = this.event.programs[this.program].tiles.length - 1;
    this.choose(this.program, Math.max(WHOLE_WALK, Math.min(last, this.tile + by)));
  }

  choose(program, tile) {
    Object.assign(this, { program, tile });
    this.draw();
  }

  paint() {
    const { viewer } = this;
    this.picker.paint();
    const event = viewer.history.lastOfKind("KernelTraced", viewer.map.seq);
    if (this.asked && (!viewer.following || event?.seq > this.asked.after)) this.asked = null;
    const waiting = this.asked && `Waiting for the next step of ${this.asked.sequence}…`;
    setText(this.hint, waiting ?? (event ? "" : NOTHING_TRACED));
    this.body.hidden = !event;
    if (event?.seq === this.event?.seq && viewer.history === this.history) return;
    Object.assign(this, { event: event ?? null, history: viewer.history });
    if (!event) {
      viewer.highlight([]);
      return;
    }
    const { sequences } = viewer.history.pictureAt(event.seq);
    this.view = sequences[event.sequence];
    this.choose(event.programs.length - 1, WHOLE_WALK);
  }

  close() {
    this.viewer.highlight([]);
  }

  draw() {
    const { event, viewer } = this;
    const walk = event.programs[this.program];
    const really = event.taken_from === "interpreter";
    setText(this.origin, really ? "really loaded (interpreter)" : "derived from the block table");
    this.origin.classList.toggle("derived", !really);
    setText(this.facts, factsOfTrace(event, viewer.header));
    setText(this.launch, launchWords(event));
    this.drawGrid();
    if (!walk) {
      setText(this.verdict, "");
      viewer.highlight([]);
      return;
    }
    const tile = walk.tiles[this.tile];
    setText(this.words, programWords(event, walk));
    this.rows.replaceChildren(...rowsOf(event, walk));
    this.drawTable(walk, tile);
    const keys = tile ? `tile ${this.tile + 1} of ${walk.tiles.length}: keys ${tile.first}–${tile.last}`
      : `the whole walk: ${count(walk.tiles.length, "tile")}, keys ${walk.tiles[0].first}–${walk.tiles.at(-1).last}`;
    setText(this.where, keys);
    this.back.disabled = this.tile === WHOLE_WALK;
    this.on.disabled = this.tile === walk.tiles.length - 1;
    const texts = tile ? this.view.texts.slice(tile.first, tile.last + 1) : [];
    this.text.replaceChildren(...texts.map((text, i) =>
      make("span", "token", { title: `position ${tile.first + i}` }, visible(text) || "·")));
    this.numbers.replaceChildren(...softmaxRows(event, walk, this.tile));
    viewer.highlight(tile ? [...new Set([...tile.key_blocks, ...tile.value_blocks])] : blocksOfWalk(walk));
  }

  /** Every program of the launch, a line for each KV head; the sequence's own can be chosen. */
  drawGrid() {
    const { event } = this;
    const [tiles, heads = 1, splits = 1] = event.grid;
    const traced = new Map(event.programs.map((walk, i) => [walk.program.join(), i]));
    const cell = (...program) => this.cell(program.slice(0, event.grid.length), traced);
    const lines = [];
    const number = tiles * heads * splits;
    if (number > GRID_SHOWN) {
      lines.push(make("div", "line", {}, `${number.toLocaleString("en")} programs; those of ${event.sequence}: `,
        ...event.programs.map(walk => cell(...walk.program))));
    } else {
      for (let head = 0; head < heads; head++) {
        const label = event.grid.length > 1 ? `KV head ${head}` : "sequence";
        const line = make("div", "line", {}, make("span", "label", {}, label));
        for (let tile = 0; tile < tiles; tile++) {
          const cells = Array.from({ length: splits }, (_, split) => cell(tile, head, split));
          line.append(make("span", "splits", {}, ...cells));
        }
        lines.push(line);
      }
    }
    this.grid.replaceChildren(...lines);
  }

  cell(program, traced) {
    const number = traced.get(program.join());
    const name = `program (${program.join(", ")})`;
    if (number === undefined) {
      return make("span", "cell", { title: `${name}: of another sequence or head, or without work` });
    }
    const words = `${name}: ${count(this.event.programs[number].tiles.length, "tile")}`;
    const attributes = { class: "cell", title: words, "aria-label": words, "aria-pressed": number === this.program };
    return makeButton("", () => this.choose(number, WHOLE_WALK), attributes);
  }

  /** The block table, with what the program reads of it, and whether that is what stands there. */
  drawTable(walk, tile) {
    const size = this.viewer.map.block_size;
    const { table } = this.view;
    const [first, last] = tile ? [tile.first, tile.last] : [walk.tiles[0].first, walk.tiles.at(-1).last];
    const chips = table.map((block, index) => {
      const lit = index >= Math.floor(first / size) && index <= Math.floor(last / size);
      const title = `logical ${index} → block ${block}`;
      const chip = make("span", lit ? "chip lit" : "chip", { title }, String(block));
      chip.addEventListener("pointerenter", () => this.viewer.selection.hover(block));
      chip.addEventListener("pointerleave", () => this.viewer.selection.hover(null));
      return chip;
    });
    const expected = table.slice(Math.floor(first / size), Math.floor(last / size) + 1);
    const read = tile ? tile.key_blocks : walkOrder(walk, "key_blocks");
    const values = tile ? tile.value_blocks : walkOrder(walk, "value_blocks");
    const agree = [read, values].every(blocks => blocks.join() === expected.join());
    this.verdict.classList.toggle("wrong", !agree);
    setText(this.verdict, agree
      ? `K and V come from ${count(read.length, "block")}: ${read.join(", ")}. That is what the block table says.`
      : `K come from ${read.join(", ")}, V from ${values.join(", ")}, but the table says ${expected.join(", ")}.`);
    const label = `block table of ${this.event.sequence}`;
    this.table.replaceChildren(make("div", "chips", { role: "group", "aria-label": label }, ...chips));
  }
}

const NOTHING_TRACED = "Nothing has been traced up to here. Choose a running sequence, a layer and a KV head, and have "
  + "its next step traced: you see which program reads which blocks, tile by tile.";

PANELS.kernel = { title: "Kernel", make: (box, viewer) => new KernelView(box, viewer) };
