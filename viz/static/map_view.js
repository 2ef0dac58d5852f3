// Which part of the block map is seen: the grid of cells, how large they are drawn, and what lies at the left upper
// corner. Pure numbers; lengths in CSS pixels, places in cells.
//
//     (left, top) +-----------+     the view: width x height pixels, pitch pixels a cell
//                 |  0  1  2  |
//                 |  8  9 10  |     columns = 8: they stay as they are however far one zooms,
//                 +-----------+     so that a block keeps its neighbours

const LARGEST_CELL = 84;

class MapView {
  constructor() {
    this.key = "";
    this.columns = this.rows = this.numBlocks = 0;
    this.width = this.height = 0;
    this.left = this.top = 0;
    this.wanted = this.pitch = this.least = 0; // `pitch` is `wanted`, rounded to whole pixels of the screen
    this.scale = 1;
  }

  /** Lay the blocks out for a room of `width` x `height`; shows all of them again if anything changed. */
  layOut(numBlocks, width, height, scale) {
    const key = [numBlocks, width, height, scale].join();
    if (key === this.key) return;
    const { columns, pitch } = chooseGrid(numBlocks, width, height, scale);
    const rows = Math.ceil(numBlocks / columns);
    Object.assign(this, { key, numBlocks, columns, rows, scale, width, least: pitch, height: rows * pitch });
    this.fit();
  }

  /** Show all blocks. */
  fit() {
    this.left = this.top = 0;
    this.wanted = this.pitch = this.least;
  }

  get most() { return Math.max(this.least, LARGEST_CELL); }
  get zoomed() { return this.pitch > this.least; }
  get gap() { return this.whole(this.pitch >= 28 ? 5 : this.pitch >= 12 ? 2 : this.pitch >= 4 ? 1 : 0); }
  get cell() { return this.pitch - this.gap; }

  /** A length rounded to whole pixels of the screen. */
  whole(length) {
    return Math.round(length * this.scale) / this.scale;
  }

  /** Enlarge `factor` times with the point (x, y) staying where it is. Returns whether that changed anything. */
  zoom(x, y, factor) {
    const [column, row] = [this.left + x / this.pitch, this.top + y / this.pitch];
    const before = this.wanted;
    this.wanted = Math.max(this.least, Math.min(this.most, this.wanted * factor));
    this.pitch = this.whole(this.wanted);
    this.moveTo(column - x / this.pitch, row - y / this.pitch);
    return this.wanted !== before;
  }

  /** Put (left, top) at the corner, as far as there are cells; below the last row there may be room for the minimap. */
  moveTo(left, top) {
    const spare = this.zoomed ? MINIMAP_HEIGHT + 12 : 0;
    this.left = Math.max(0, Math.min(this.columns - this.width / this.pitch, left));
    this.top = Math.max(0, Math.min(this.rows - (this.height - spare) / this.pitch, top));
  }

  moveBy(dx, dy) {
    this.moveTo(this.left + dx / this.pitch, this.top + dy / this.pitch);
  }

  /** Move as little as is needed to see a block whole. */
  reveal(block) {
    const [column, row] = [block % this.columns, Math.floor(block / this.columns)];
    const into = (start, length, cell) => Math.min(cell, Math.max(start, cell + 1 - length));
    this.moveTo(into(this.left, this.width / this.pitch, column), into(this.top, this.height / this.pitch, row));
  }

  /** Where the left upper corner of block 0's place lies, on a whole pixel of the screen like every cell. */
  get origin() {
    return [-this.whole(this.left * this.pitch), -this.whole(this.top * this.pitch)];
  }

  /** Left upper corner of a block's cell. */
  corner(block) {
    const [x, y] = this.origin;
    const margin = this.whole(Math.floor(this.gap / 2));
    const [column, row] = [block % this.columns, Math.floor(block / this.columns)];
    return [x + column * this.pitch + margin, y + row * this.pitch + margin];
  }

  /** The block at a point, or null. */
  blockAt(x, y) {
    if (x < 0 || y < 0 || x >= this.width || y >= this.height) return null;
    const column = Math.floor(x / this.pitch + this.left);
    const block = Math.floor(y / this.pitch + this.top) * this.columns + column;
    return column < this.columns && block < this.numBlocks ? block : null;
  }

  /** Call `each(block)` for every block of which something is seen. */
  forVisible(each) {
    const lastColumn = Math.min(this.columns - 1, Math.floor(this.left + this.width / this.pitch));
    const lastRow = Math.min(this.rows - 1, Math.floor(this.top + this.height / this.pitch));
    for (let row = Math.floor(this.top); row <= lastRow; row++) {
      for (let column = Math.floor(this.left); column <= lastColumn; column++) {
        const block = row * this.columns + column;
        if (block < this.numBlocks) each(block);
      }
    }
  }

  isVisible(block) {
    const [x, y] = this.corner(block);
    return x + this.pitch > 0 && y + this.pitch > 0 && x < this.width && y < this.height;
  }
}

/** The largest cells of whole screen pixels with which all of them fit into `width` x `height`. */
function chooseGrid(number, width, height, scale = 1, largest = LARGEST_CELL) {
  let best = { columns: Math.max(1, Math.floor(width * scale)), pitch: 1 / scale };
  for (let columns = 1; columns <= Math.min(number, width * scale); columns++) {
    const room = Math.min(largest, width / columns, height / Math.ceil(number / columns));
    const pitch = Math.floor(room * scale) / scale;
    if (pitch >= best.pitch) best = { columns, pitch };
  }
  return best;
}
