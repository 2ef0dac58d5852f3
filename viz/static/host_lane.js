// The host lane: a strip under the block map with one cell per block of the host pool, where swapped-out blocks wait.

const LANE_HEAD = 24; // px above the cells, for the words
const LANE_ROOM = 72;
const LANE_CELL = 44;

class HostLane {
  constructor() {
    this.numBlocks = 0;
    this.pitch = this.columns = this.top = this.height = 0;
  }

  /** Lay the lane out below `top`; its height is 0 where there is no host pool. */
  layOut(numBlocks, width, top, scale) {
    const { columns, pitch } = chooseGrid(numBlocks, width, LANE_ROOM, scale, LANE_CELL);
    const height = numBlocks > 0 ? LANE_HEAD + Math.ceil(numBlocks / columns) * pitch : 0;
    Object.assign(this, { numBlocks, columns, pitch, top, height, scale });
  }

  get cell() { return this.pitch - (this.pitch >= 12 ? 3 : this.pitch >= 4 ? 1 : 0); }

  corner(hostBlock) {
    return [(hostBlock % this.columns) * this.pitch,
      this.top + LANE_HEAD + Math.floor(hostBlock / this.columns) * this.pitch];
  }

  /** The host block at a point, or null. */
  blockAt(x, y) {
    const row = Math.floor((y - this.top - LANE_HEAD) / this.pitch);
    const column = Math.floor(x / this.pitch);
    const hostBlock = row * this.columns + column;
    return this.height > 0 && row >= 0 && column < this.columns && hostBlock < this.numBlocks ? hostBlock : null;
  }

  paint(context, looks, theme) {
    const { holders, map } = looks;
    context.fillStyle = theme.muted;
    context.font = `13px ${theme.font}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const words = `host pool: ${holders.host.size} of ${this.numBlocks} blocks used`;
    context.fillText(words, 0, this.top + LANE_HEAD / 2 + 2);
    for (let hostBlock = 0; hostBlock < this.numBlocks; hostBlock++) {
      drawBlock(context, ...this.corner(hostBlock), this.cell, looks.hostLook(hostBlock), map.block_size, theme);
    }
  }
}

/** A host block in a few words, for the pointer that rests on it. */
function hostBlockInWords(map, hostBlock, holders) {
  const [entry] = holders.host.get(hostBlock) ?? [];
  if (!entry) return `host block ${hostBlock}: blank`;
  return `host block ${hostBlock}: logical ${entry.index} of ${entry.view.sequence}, swapped out`;
}
