// The block map: one cell per physical block on two canvases. The lower one shows the MemoryMap and is painted when that
// changed; the upper one holds what moves or follows the pointer: flashes, copy arrows, the selection.

const LARGEST_CELL = 84;
const SMALLEST_CELL = 5;
const FLASH_MS = 700;
const ARROW_MS = 1600;

class BlockMap {
  /** `selection` is told what the pointer and the keys choose, and says what to outline. */
  constructor(parts, selection) {
    this.box = parts.map;
    this.blocks = parts.blocks;
    this.overlay = parts.overlay;
    this.selection = selection;
    this.flashes = new Map(); // block -> {kind, start}
    this.arrows = []; // {source, destination, step, start}
    this.grid = null;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.listen();
  }

  listen() {
    const { overlay, selection } = this;
    overlay.addEventListener("pointermove", event => selection.hover(this.blockAt(event)));
    overlay.addEventListener("pointerleave", () => selection.hover(null));
    overlay.addEventListener("click", event => selection.pin(this.blockAt(event)));
    overlay.addEventListener("keydown", event => this.onKey(event));
  }

  onKey(event) {
    if (!this.grid) return;
    const { columns, numBlocks } = this.grid;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -Infinity, End: Infinity };
    const from = this.selection.block;
    if (event.key in steps) {
      const to = from === null ? 0 : Math.max(0, Math.min(numBlocks - 1, from + steps[event.key]));
      this.selection.walk(to);
    } else if (event.key === "Enter" || event.key === " ") {
      this.selection.pin(from);
    } else if (event.key === "Escape") {
      this.selection.clear();
    } else {
      return;
    }
    event.preventDefault();
  }

  blockAt(event) {
    if (!this.grid) return null;
    const { columns, pitch, numBlocks } = this.grid;
    const column = Math.floor(event.offsetX / pitch);
    const block = Math.floor(event.offsetY / pitch) * columns + column;
    return column < columns && block >= 0 && block < numBlocks ? block : null;
  }

  /** Remember what a new event wants to be seen doing. */
  note(event, now) {
    if (event.kind === "BlockAllocated" || event.kind === "BlockShared") this.flash(event.block, "allocated", now);
    if (event.kind === "BlockEvicted") this.flash(event.block, "evicted", now);
    if (event.kind === "BlockCopied") {
      this.arrows.push({ source: event.source, destination: event.destination, step: event.step, start: now });
    }
  }

  flash(block, kind, now) {
    const before = this.flashes.get(block);
    const evictedJustNow = before?.kind === "evicted" && now - before.start < FLASH_MS / 2;
    if (!evictedJustNow) this.flashes.set(block, { kind, start: now });
  }

  forget() {
    this.flashes.clear();
    this.arrows = [];
  }

  /** Fit the grid to the room there is. Returns false while there is none (the tab is hidden). */
  fit(numBlocks) {
    const width = this.box.clientWidth;
    if (width === 0) return false;
    const scale = window.devicePixelRatio || 1;
    const room = Math.max(260, Math.min(640, window.innerHeight * 0.48));
    const key = [numBlocks, width, scale, Math.round(room)].join();
    if (this.grid?.key === key) return true;
    const { columns, pitch } = chooseGrid(numBlocks, width, room);
    const height = Math.ceil(numBlocks / columns) * pitch;
    for (const canvas of [this.blocks, this.overlay]) {
      canvas.width = Math.round(columns * pitch * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.width = `${columns * pitch}px`;
      canvas.style.height = `${height}px`;
    }
    const gap = pitch >= 28 ? 5 : pitch >= 12 ? 2 : 1;
    this.grid = { key, numBlocks, columns, pitch, gap, cell: pitch - gap, scale };
    return true;
  }

  /** Left upper corner of a block's cell. */
  corner(block) {
    const { columns, pitch, gap } = this.grid;
    return [(block % columns) * pitch + gap / 2, Math.floor(block / columns) * pitch + gap / 2];
  }

  paint(map, holders, theme) {
    if (!this.fit(map.num_blocks)) return;
    const context = this.begin(this.blocks);
    for (let block = 0; block < map.num_blocks; block++) {
      const [x, y] = this.corner(block);
      drawBlock(context, x, y, this.grid.cell, describeBlock(map, block, holders), map.block_size, theme);
    }
  }

  /** Returns whether something still moves, so that another frame is wanted. */
  paintOverlay(map, theme, now) {
    if (!this.fit(map.num_blocks)) return false;
    const context = this.begin(this.overlay);
    const moving = this.paintFlashes(context, theme, now);
    for (const block of this.selection.family(map)) this.outline(context, block, theme.accent, 1.5);
    if (this.selection.pinned !== null) this.outline(context, this.selection.pinned, theme.ink, 2.5);
    if (this.selection.block !== null) this.outline(context, this.selection.block, theme.accent, 2.5);
    return this.paintArrows(context, map, theme, now) || moving;
  }

  paintFlashes(context, theme, now) {
    for (const [block, { kind, start }] of this.flashes) {
      const age = (now - start) / FLASH_MS;
      if (age >= 1 || this.still.matches || block >= this.grid.numBlocks) {
        this.flashes.delete(block);
        continue;
      }
      const [x, y] = this.corner(block);
      const { cell } = this.grid;
      context.globalAlpha = 1 - age;
      if (kind === "allocated") {
        const spread = Math.min(6, cell / 5) * (1 - age);
        context.strokeStyle = theme.ink;
        context.lineWidth = 2;
        context.strokeRect(x - spread, y - spread, cell + 2 * spread, cell + 2 * spread);
      } else {
        context.fillStyle = theme.hatch;
        context.fillRect(x, y, cell, cell);
      }
      context.globalAlpha = 1;
    }
    return this.flashes.size > 0;
  }

  /** Pending copies stay; copies made fade out, or stay as long as the engine stands still after their step. */
  paintArrows(context, map, theme, now) {
    const pending = new Set(map.pending_copies.map(String));
    const kept = map.halted_after !== "";
    this.arrows = this.arrows.filter(arrow => pending.has(String([arrow.source, arrow.destination]))
      || (kept ? arrow.step >= map.step - 1 : now - arrow.start < ARROW_MS));
    for (const [source, destination] of map.pending_copies) this.arrow(context, source, destination, theme, 1, true);
    for (const { source, destination, start } of this.arrows) {
      if (pending.has(String([source, destination]))) continue;
      const age = this.still.matches || kept ? 0 : (now - start) / ARROW_MS;
      this.arrow(context, source, destination, theme, 1 - age * age, false);
    }
    return this.arrows.length > 0 && !kept;
  }

  /** A bow from source to destination: dashed while the copy is only planned. */
  arrow(context, source, destination, theme, alpha, pending) {
    const half = this.grid.cell / 2;
    const [x0, y0] = this.corner(source).map(value => value + half);
    const [x1, y1] = this.corner(destination).map(value => value + half);
    const bend = Math.hypot(x1 - x0, y1 - y0) / 4;
    const [mx, my] = [(x0 + x1) / 2, Math.max(4, (y0 + y1) / 2 - bend)];
    context.globalAlpha = alpha;
    context.setLineDash(pending ? [6, 4] : []);
    drawArrow(context, [x0, y0], [x1, y1], [mx, my], Math.max(6, Math.min(11, half)), theme.accent);
    context.globalAlpha = 1;
    this.outline(context, destination, theme.accent, 2, alpha);
  }

  outline(context, block, colour, width, alpha = 1) {
    if (block >= this.grid.numBlocks) return;
    const [x, y] = this.corner(block);
    context.globalAlpha = alpha;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(x - 1, y - 1, this.grid.cell + 2, this.grid.cell + 2);
    context.globalAlpha = 1;
  }

  begin(canvas) {
    const context = canvas.getContext("2d");
    context.setTransform(this.grid.scale, 0, 0, this.grid.scale, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    return context;
  }
}

/** The largest cells with which all blocks fit into `width` x `height`; below a least size the map grows in height. */
function chooseGrid(numBlocks, width, height) {
  let best = { columns: 1, pitch: 0 };
  for (let columns = 1; columns <= Math.min(numBlocks, width / SMALLEST_CELL); columns++) {
    const rows = Math.ceil(numBlocks / columns);
    const pitch = Math.floor(Math.min(LARGEST_CELL, width / columns, height / rows));
    if (pitch >= best.pitch) best = { columns, pitch };
  }
  if (best.pitch >= SMALLEST_CELL) return best;
  return { columns: Math.floor(width / SMALLEST_CELL), pitch: SMALLEST_CELL };
}
