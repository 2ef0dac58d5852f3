// What moves on the block map, so that a change is felt: an allocation lands, a released block loses its owner's
// colour, an evicted one its hatching, a copy draws an arrow, a swap travels to the host lane and back. Where motion
// is unwelcome nothing flashes or travels, and a swap is an arrow like a copy.

const FLASH_MS = 700;
const MOVE_MS = 1600;
const TRAVEL_MS = 900;

class MapMotion {
  constructor() {
    this.flashes = new Map(); // block -> {kind, sequence, start}
    this.moves = []; // {kind, from, to, sequence, step, start}; a place -1 - h is block h of the host pool
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
  }

  /** Remember what a new event wants to be seen doing. */
  note(event, now) {
    if (document.hidden) return; // where nothing is painted, nothing would ever be forgotten
    const { kind, sequence, step } = event;
    const flash = look => this.flash(event.block, { kind: look, sequence, start: now });
    const move = (from, to) => this.moves.push({ kind, from, to, sequence, step, start: now });
    if (kind === "BlockAllocated" || kind === "BlockShared") flash("landed");
    if (kind === "BlockReleased") flash("released");
    if (kind === "BlockEvicted") flash("evicted");
    if (kind === "BlockCopied") move(event.source, event.destination);
    if (kind === "BlocksSwappedOut") event.blocks.forEach((block, i) => move(block, -1 - event.host_blocks[i]));
    if (kind === "BlocksSwappedIn") event.blocks.forEach((block, i) => move(-1 - event.host_blocks[i], block));
  }

  /** An eviction is followed at once by the allocation that wanted it, and is to be seen nevertheless. */
  flash(block, flash) {
    const before = this.flashes.get(block);
    const evictedJustNow = before?.kind === "evicted" && flash.start - before.start < FLASH_MS / 2;
    if (!evictedJustNow) this.flashes.set(block, flash);
  }

  forget() {
    this.flashes.clear();
    this.moves = [];
  }

  /** Landing, releasing, evicting. `place(block)` gives {x, y, size}. Returns whether something still flashes. */
  paintFlashes(context, map, theme, now, place) {
    for (const [block, { kind, sequence, start }] of this.flashes) {
      const age = (now - start) / FLASH_MS;
      if (age >= 1 || this.still.matches || block >= map.num_blocks) {
        this.flashes.delete(block);
        continue;
      }
      const { x, y, size } = place(block);
      context.globalAlpha = 1 - Math.max(0, age);
      if (kind === "landed") {
        const spread = Math.min(6, size / 5) * (1 - age);
        context.strokeStyle = theme.ink;
        context.lineWidth = 2;
        context.strokeRect(x - spread, y - spread, size + 2 * spread, size + 2 * spread);
      } else {
        const view = map.sequences[sequence];
        context.fillStyle = kind === "released" && view ? theme.laneColour(view.lane) : theme.hatch;
        context.fillRect(x, y, size, size);
      }
      context.globalAlpha = 1;
    }
    return this.flashes.size > 0;
  }

  /**
   * Copies and swaps. Pending copies stay; moves made fade out, or stay as long as the engine stands still after their
   * step. Returns whether something still moves.
   */
  paintMoves(context, map, theme, now, place) {
    const pending = new Set(map.pending_copies.map(String));
    const kept = map.halted_after !== "";
    this.moves = this.moves.filter(move => pending.has(String([move.from, move.to]))
      || (kept ? move.step >= map.step - 1 : now - move.start < MOVE_MS));
    for (const [source, destination] of map.pending_copies) {
      drawMove(context, place(source), place(destination), theme, 1, true);
    }
    for (const { kind, from, to, sequence, start } of this.moves) {
      if (pending.has(String([from, to]))) continue;
      const [here, there] = [place(from), place(to)];
      const age = this.still.matches || kept ? 0 : (now - start) / MOVE_MS;
      if (kind === "BlockCopied" || this.still.matches || kept) {
        drawMove(context, here, there, theme, 1 - age * age, false);
      } else {
        const view = map.sequences[sequence];
        const colour = view ? theme.laneColour(view.lane) : theme.muted;
        drawTraveller(context, here, there, (now - start) / TRAVEL_MS, colour, theme);
      }
    }
    return this.moves.length > 0 && !kept;
  }
}

/** A bow from one cell to another: dashed while the move is only planned. */
function drawMove(context, from, to, theme, alpha, pending) {
  const [x0, y0] = middle(from);
  const [x1, y1] = middle(to);
  const bend = Math.hypot(x1 - x0, y1 - y0) / 4;
  context.globalAlpha = alpha;
  context.setLineDash(pending ? [6, 4] : []);
  const through = [(x0 + x1) / 2, Math.max(4, (y0 + y1) / 2 - bend)];
  drawArrow(context, [x0, y0], [x1, y1], through, Math.max(6, Math.min(11, to.size / 2)), theme.accent);
  drawOutline(context, to, theme.accent, 2);
  context.globalAlpha = 1;
}

/** A block on its way: a square that starts slowly, ends slowly, and takes the size of the cell it comes to. */
function drawTraveller(context, from, to, age, colour, theme) {
  if (age >= 1) return;
  const part = age * age * (3 - 2 * age);
  const at = name => from[name] + (to[name] - from[name]) * part;
  const size = Math.max(6, at("size"));
  context.fillStyle = colour;
  context.fillRect(at("x"), at("y"), size, size);
  drawOutline(context, { x: at("x"), y: at("y"), size }, theme.ink, 1.5);
}

function drawOutline(context, { x, y, size }, colour, width) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.strokeRect(x - 1, y - 1, size + 2, size + 2);
}

function middle({ x, y, size }) {
  return [x + size / 2, y + size / 2];
}
