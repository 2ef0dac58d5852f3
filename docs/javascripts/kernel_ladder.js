// A launch of one kernel of the ladder, as the interpreter saw it: program by program, tile by tile.
//
//   grid     head 0   [ ][#][ ]     a program; those that loaded something can be chosen
//            head 1   [ ][ ][ ]
//   ‹ tile 2 of 4 of program (1, 0) ›           Left and Right go on from tile to tile, and from program to program
//   A   [7 ×2][2 ×2][9]             block tables; the blocks of the tile are lit, ×2: loaded twice so far
//   head · running max · old sum × exp(m − m′) + this tile's = running sum
//
// make, setText, count and softmaxRows come with the viewer of the recordings.

class LadderFigure {
  constructor(box) {
    this.data = JSON.parse(box.querySelector("script").textContent);
    this.moments = this.data.programs.flatMap((walk, program) => walk.tiles.map((_, tile) => ({ program, tile })));
    this.grid = make("div", "kernel-grid");
    this.words = make("p", "program", { "aria-live": "polite" });
    this.where = make("b", "where");
    this.back = this.button("‹", "the tile before (Left)", -1);
    this.on = this.button("›", "the next tile (Right)", 1);
    this.tables = make("div", "kernel-table");
    this.numbers = make("table", "sheet");
    const label = "the launch: Left and Right go from tile to tile, Home and End to the first and the last";
    const walk = make("div", "walk", { tabindex: "0", role: "group", "aria-label": label },
      make("p", "moves", {}, this.back, this.where, this.on), this.tables, this.numbers);
    walk.addEventListener("keydown", event => this.onKey(event));
    const facts = make("p", "facts", {}, make("b", "origin", {}, "really loaded (interpreter)"), " ", this.facts());
    const body = make("div", "kernel-body", {}, facts, this.grid, this.words, walk);
    box.querySelector(".ladder-view").append(body);
    this.go(0);
  }

  facts() {
    const { grid, keys, keys_there: there } = this.data;
    const programs = grid[0] * grid[1] * grid[2];
    const size = grid[2] > 1 ? grid.join(" × ") : grid.slice(0, 2).join(" × ");
    return `grid ${size}: ${programs} programs, ${this.data.programs.length} with something to do · ${there} keys in `
      + `view of their KV head, ${keys} keys loaded: each ${(keys / there).toFixed(2)} times`;
  }

  button(words, title, by) {
    const button = make("button", "", { type: "button", title, "aria-label": title }, words);
    button.addEventListener("click", () => this.go(this.at + by));
    return button;
  }

  onKey(event) {
    const last = this.moments.length - 1;
    const places = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: last };
    if (!(event.key in places) || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.go(places[event.key]);
  }

  go(at) {
    const last = this.moments.length - 1;
    this.at = Math.max(0, Math.min(last, at));
    const { program, tile: number } = this.moments[this.at];
    const walk = this.data.programs[program];
    const tile = walk.tiles[number];
    this.drawGrid(program);
    setText(this.words, this.wordsOf(walk));
    setText(this.where, `tile ${number + 1} of ${walk.tiles.length}: keys ${tile.first}–${tile.last}`);
    this.back.disabled = this.at === 0;
    this.on.disabled = this.at === last;
    this.drawTables(walk, tile);
    const heads = { group: walk.heads.length, kv_head: walk.heads[0] / walk.heads.length };
    this.numbers.replaceChildren(...softmaxRows(heads, walk, number));
  }

  wordsOf(walk) {
    const { name, context } = this.data.sequences[walk.sequence];
    const { first_position: first, num_queries: queries, program, heads } = walk;
    const whose = queries === 1 ? `the token at position ${first}` : `the tokens at positions ${first}–${first + queries - 1}`;
    const shown = this.data.grid[2] > 1 ? program : program.slice(0, 2);
    const which = heads.length === 1 ? `query head ${heads[0]}` : `query heads ${heads.join(", ")}`;
    return `Program (${shown.join(", ")}) serves ${whose} of ${name}, which has ${context} tokens of context, for `
      + `${which}, and loads keys and values of KV head ${walk.kv_head}.`;
  }

  /** A line for each head, in it a cell for each program; the splits of a tile stand close together. */
  drawGrid(chosen) {
    const [across, down, splits] = this.data.grid;
    const number = new Map(this.data.programs.map((walk, i) => [walk.program.join(), i]));
    const lines = Array.from({ length: down }, (_, y) => make("div", "line", {},
      make("span", "label", {}, `${this.data.down} ${y}`),
      ...Array.from({ length: across }, (_, x) => make("span", "splits", {},
        ...Array.from({ length: splits }, (_, z) => this.cell([x, y, z], number, chosen))))));
    this.grid.replaceChildren(...lines);
  }

  cell(program, number, chosen) {
    const own = number.get(program.join());
    const [x, y, z] = program;
    const name = `${this.data.across} ${x}, ${this.data.down} ${y}${this.data.grid[2] > 1 ? `, split ${z}` : ""}`;
    if (own === undefined) return make("span", "cell", { title: `${name}: returns without a key` });
    const cell = make("button", "cell", { type: "button", title: name, "aria-label": name, "aria-pressed": own === chosen });
    cell.addEventListener("click", () => {
      this.go(this.moments.findIndex(moment => moment.program === own));
      this.grid.querySelector('[aria-pressed="true"]').focus();
    });
    return cell;
  }

  /** Every block table; how often each of its blocks was loaded from up to this tile, by any program before. */
  drawTables(walk, tile) {
    const times = new Map();
    for (const { program, tile: number } of this.moments.slice(0, this.at + 1)) {
      for (const block of this.data.programs[program].tiles[number].key_blocks) {
        times.set(block, (times.get(block) ?? 0) + 1);
      }
    }
    this.tables.replaceChildren(...this.data.sequences.map((sequence, row) => {
      const chips = sequence.table.map((block, index) => {
        const lit = row === walk.sequence && tile.key_blocks.includes(block);
        const loads = times.get(block) ?? 0;
        const size = this.data.block_size;
        const end = Math.min((index + 1) * size, sequence.context) - 1;
        const title = `positions ${index * size}–${end} → block ${block}, loaded from ${loads} times so far`;
        return make("span", lit ? "chip lit" : loads ? "chip read" : "chip", { title }, String(block),
          make("small", "", {}, loads ? `×${loads}` : ""));
      });
      const label = `block table of ${sequence.name}, blocks of ${this.data.block_size} slots`;
      const name = `${sequence.name}: ${count(sequence.queries, "query token")}`;
      return make("div", "ladder-row", {}, make("span", "label", {}, name),
        make("div", "chips", { role: "group", "aria-label": label }, ...chips));
    }));
  }
}

for (const box of document.querySelectorAll(".pagelens.ladder")) new LadderFigure(box);
