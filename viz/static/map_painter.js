// Paints the blocks of one picture, and of them only those that have changed since the last one:
//
//     looks -> signature of every block -> those that differ -> pixels of the overview -> cells that are seen

const GLYPH_PITCH = 8; // px: below, a block is a pixel of the overview, drawn large

class MapPainter {
  constructor(canvas, view, lane, overview) {
    Object.assign(this, { canvas, view, lane, overview });
    this.signatures = new Int32Array(0);
    this.hostLooks = 0;
  }

  /** `recoloured`: every block looks otherwise; `moved`: the view does. Returns whether anything was painted. */
  paint(looks, recoloured, moved) {
    const changed = this.takeChanges(looks, recoloured);
    if (recoloured || moved) this.paintAll(looks);
    else this.paintChanged(looks, changed);
    if (recoloured || moved || looks.holders.hostLooks !== this.hostLooks) this.paintLane(looks);
    this.hostLooks = looks.holders.hostLooks;
    return recoloured || moved || changed.length > 0;
  }

  /** The blocks that look otherwise than they did, brought up to date in the overview. */
  takeChanges(looks, all) {
    const { view, overview } = this;
    const anew = overview.begin(view.columns, view.rows) || all;
    if (this.signatures.length !== view.numBlocks) this.signatures = new Int32Array(view.numBlocks);
    const changed = [];
    for (let block = 0; block < view.numBlocks; block++) {
      const signature = looks.signature(block);
      if (!anew && signature === this.signatures[block]) continue;
      this.signatures[block] = signature;
      overview.set(block, looks.pixel(block));
      changed.push(block);
    }
    if (changed.length > 0) overview.flush();
    return changed;
  }

  paintAll(looks) {
    const { view, lane } = this;
    const context = sizeCanvas(this.canvas, view.width, view.height + lane.height, view.scale);
    if (view.pitch < GLYPH_PITCH) this.paintPixels(context, looks);
    else this.withinMap(context, () => view.forVisible(block => this.paintBlock(context, looks, block)));
  }

  paintChanged(looks, changed) {
    if (changed.length === 0) return;
    const { view } = this;
    const context = this.canvas.getContext("2d");
    if (view.pitch < GLYPH_PITCH) this.paintPixels(context, looks);
    else this.withinMap(context, () => {
      for (const block of changed) if (view.isVisible(block)) this.paintBlock(context, looks, block);
    });
  }

  /** A rounded corner may tint the screen pixel beside the cell, so that one is wiped as well. */
  paintBlock(context, looks, block) {
    const { cell, scale } = this.view;
    const [x, y] = this.view.corner(block);
    context.clearRect(x - 1 / scale, y - 1 / scale, cell + 2 / scale, cell + 2 / scale);
    drawBlock(context, x, y, cell, looks.look(block), looks.map.block_size, looks.theme);
  }

  /** All blocks at once from the overview; lines between the cells and a dot in the shared ones where there is room. */
  paintPixels(context, looks) {
    const { view } = this;
    const { pitch, columns, rows, width, height, gap } = view;
    const [x, y] = view.origin;
    this.withinMap(context, () => {
      context.clearRect(0, 0, width, height);
      context.imageSmoothingEnabled = false;
      context.drawImage(this.overview.canvas, x, y, columns * pitch, rows * pitch);
      if (gap === 0) return;
      for (let column = 1; column <= columns; column++) context.clearRect(x + column * pitch - gap, 0, gap, height);
      for (let row = 1; row <= rows; row++) context.clearRect(0, y + row * pitch - gap, width, gap);
      context.fillStyle = looks.theme.ink;
      const middle = Math.floor((pitch - gap - 1) / 2);
      view.forVisible(block => {
        if (looks.map.ref_count[block] < 2) return;
        const [column, row] = [block % columns, Math.floor(block / columns)];
        context.fillRect(x + column * pitch + middle, y + row * pitch + middle, 2, 2);
      });
    });
  }

  paintLane(looks) {
    const { lane, view } = this;
    if (lane.height === 0) return;
    const context = this.canvas.getContext("2d");
    context.clearRect(0, view.height, view.width, lane.height);
    lane.paint(context, looks, looks.theme);
  }

  /** Draw without spilling into the host lane. */
  withinMap(context, draw) {
    context.save();
    context.beginPath();
    context.rect(0, 0, this.view.width, this.view.height);
    context.clip();
    draw();
    context.restore();
  }
}
