// The block map: one cell per physical block on two canvases, and the host lane below. The lower canvas shows the
// MemoryMap (MapPainter); the upper one holds what moves or follows the pointer.

class BlockMap {
  /**
   * `selection` is told what the pointer and the keys choose, and says what to outline. `header()` gives the run's
   * header and `highlighted()` further blocks to outline.
   */
  constructor(parts, selection, { header = () => null, highlighted = () => [] } = {}) {
    Object.assign(this, { box: parts.map, blocks: parts.blocks, overlay: parts.overlay, legend: parts.legend });
    Object.assign(this, { selection, header, highlighted });
    const changed = () => selection.changed();
    this.view = new MapView();
    this.lane = new HostLane();
    this.overview = new Overview();
    this.minimap = new Minimap(this.view, this.overview, changed);
    this.motion = new MapMotion();
    this.sheet = new BlockSheet(changed);
    this.gestures = new MapGestures(this.overlay, this.view, selection, { hover: (x, y) => this.hover(x, y), changed });
    this.colouring = "owner";
    this.painter = new MapPainter(this.blocks, this.view, this.lane, this.overview);
    this.painted = {}; // what the last painting showed
    this.pinned = null;
    const stage = make("div", "stage", {}, this.blocks, this.overlay, this.minimap.canvas);
    this.box.replaceChildren(this.makeTools(), stage, this.sheet.box);
  }

  makeTools() {
    this.choices = Object.entries(COLOURINGS).map(([name, { title }]) =>
      makeButton(title, () => this.colourBy(name), { "aria-pressed": String(name === this.colouring) }));
    const tool = (words, label, act) => makeButton(words, act, { "aria-label": label, title: label });
    this.fit = tool("fit", "show all blocks (0)", () => this.gestures.fit());
    this.tabled = tool("as a table", "the blocks as a table", () => this.toggleSheet());
    this.tabled.setAttribute("aria-pressed", "false");
    return make("div", "map-tools", {},
      make("div", "segments", { role: "group", "aria-label": "colour blocks by" },
        make("span", "", {}, "colour by"), ...this.choices),
      make("div", "segments", { role: "group", "aria-label": "zoom" },
        tool("−", "zoom out (-)", () => this.gestures.zoom(1 / KEY_ZOOM)), this.fit,
        tool("+", "zoom in (+)", () => this.gestures.zoom(KEY_ZOOM))),
      this.tabled);
  }

  /** Colour the blocks by one of COLOURINGS. */
  colourBy(name) {
    this.colouring = name;
    Object.keys(COLOURINGS).forEach((each, i) => this.choices[i].setAttribute("aria-pressed", String(each === name)));
    this.selection.changed();
  }

  toggleSheet() {
    this.sheet.box.hidden = !this.sheet.box.hidden;
    this.tabled.setAttribute("aria-pressed", String(!this.sheet.box.hidden));
    this.selection.changed();
  }

  hover(x, y) {
    this.selection.hover(this.view.blockAt(x, y));
    const hostBlock = this.lane.blockAt(x, y);
    this.overlay.title = hostBlock === null || !this.looks ? ""
      : hostBlockInWords(this.looks.map, hostBlock, this.looks.holders);
  }

  note(event, now) {
    this.motion.note(event, now);
  }

  forget() {
    this.motion.forget();
  }

  get numHostBlocks() {
    return this.header()?.num_host_blocks ?? 0;
  }

  /** Fit the grid to the room there is. Returns false while there is none (the tab is hidden). */
  layOut(numBlocks) {
    const width = this.box.clientWidth;
    if (width === 0) return false;
    const scale = window.devicePixelRatio || 1;
    const room = Math.round(Math.max(260, Math.min(640, window.innerHeight * 0.48)));
    this.view.layOut(numBlocks, width, room, scale);
    this.lane.layOut(this.numHostBlocks, width, this.view.height, scale);
    return true;
  }

  paint(map, holders, theme) {
    if (!this.layOut(map.num_blocks)) return;
    const { view, colouring, selection } = this;
    const { pinnedBlock } = selection;
    if (view.zoomed && pinnedBlock !== null && pinnedBlock !== this.pinned) view.reveal(pinnedBlock);
    this.pinned = pinnedBlock;
    this.looks = new BlockLooks(map, holders, theme, colouring);
    const { key, pitch, left, top } = view;
    const pool = `${map.num_blocks} ${map.block_size} ${this.lane.numBlocks}`;
    const now = { pool, theme, colouring, key, pitch, left, top };
    const differs = (...names) => names.some(name => now[name] !== this.painted[name]);
    const recoloured = differs("pool", "theme", "colouring");
    const moved = differs("key", "pitch", "left", "top");
    this.painted = now;
    if (recoloured) showLegend(this.legend, legendItems(colouring, theme, map.block_size, this.numHostBlocks > 0));
    if (this.painter.paint(this.looks, recoloured, moved)) this.minimap.paint(theme, this.lane.height);
    this.fit.disabled = !view.zoomed;
    this.box.classList.toggle("zoomed", view.zoomed);
    this.sheet.paint(map, holders, this.numHostBlocks);
  }

  /** Returns whether something still moves, so that another frame is wanted. */
  paintOverlay(map, theme, now) {
    if (!this.layOut(map.num_blocks)) return false;
    const { view, lane, selection } = this;
    const context = sizeCanvas(this.overlay, view.width, view.height + lane.height, view.scale);
    this.painter.withinMap(context, () => {
      const outline = (block, colour, width) => {
        if (block < view.numBlocks && block >= 0) drawOutline(context, this.place(block), colour, width);
      };
      for (const block of this.highlighted()) outline(block, theme.accent, 3);
      for (const block of selection.family(map)) outline(block, theme.accent, 1.5);
      if (selection.pinnedBlock !== null) outline(selection.pinnedBlock, theme.ink, 2.5);
      if (selection.block !== null) outline(selection.block, theme.accent, 2.5);
      const { slot } = selection;
      if (slot && view.cell >= LABELLED_CELL) this.outlineSlot(context, slot, map.block_size, theme);
    });
    const place = block => this.place(block);
    let moving = false;
    this.painter.withinMap(context, () => { moving = this.motion.paintFlashes(context, map, theme, now, place); });
    return this.motion.paintMoves(context, map, theme, now, place) || moving;
  }

  /** The slot of the token that is looked at. */
  outlineSlot(context, { block, slot }, blockSize, theme) {
    const { x, y, size } = this.place(block);
    const [left, upper, width, height] = slotPlace(x, y, size, slot, blockSize);
    context.strokeStyle = theme.ink;
    context.lineWidth = 2.5;
    context.strokeRect(left - 1, upper - 1, width + 2, height + 2);
  }

  /** Where a block's cell is; -1 - h means block h of the host pool. */
  place(block) {
    const { view, lane } = this;
    const [x, y] = block < 0 ? lane.corner(-1 - block) : view.corner(block);
    return { x, y, size: block < 0 ? lane.cell : Math.max(view.cell, 1) };
  }

  /** A picture of the whole map with its legend, as a PNG. Returns a Promise of a Blob. */
  toPNG() {
    const { colouring } = this;
    const { map, theme } = this.looks;
    const { seq, step, phase } = map;
    const looks = new BlockLooks(map, holdersOfBlocks(map), theme, colouring); // the map may have gone on since
    const caption = `run ${this.header()?.run ?? "unknown"} · step ${step}, ${phase} · event ${seq} · `
      + `coloured by ${COLOURINGS[colouring].title}`;
    return drawMapPicture(looks, colouring, this.numHostBlocks, caption);
  }
}
