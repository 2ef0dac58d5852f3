// How one block is drawn: the same glyphs on the map and in its legend. Colour never speaks alone: shared blocks have a
// dashed outline and a count, cached ones a hatch, filled slots are solid and planned ones hollow.
//
//     25   A.2      number and owner, where there is room
//     # # # #       filled slots
//     # # o .       o planned by this step, . empty

const NUM_LANES = 12;

/** The colours of the page's theme, read from its CSS once per theme. */
class Theme {
  constructor(element) {
    const style = getComputedStyle(element);
    const read = name => style.getPropertyValue(`--${name}`).trim();
    this.lanes = Array.from({ length: NUM_LANES }, (_, lane) => read(`lane-${lane}`));
    for (const name of ["blank", "blank-edge", "cached", "hatch", "cell", "slot", "ink", "muted", "accent", "badge",
      "badge-ink", "panel"]) {
      this[name.replace(/-(.)/, (_, letter) => letter.toUpperCase())] = read(name);
    }
    this.font = style.fontFamily;
  }

  laneColour(lane) {
    return this.lanes[lane % NUM_LANES];
  }
}

/** The colours of a block's holders, each once, in the order of their tables. */
function holderColours(described, theme) {
  return [...new Set(described.entries.map(({ view }) => theme.laneColour(view.lane)))];
}

/** Draw a block into the square at (x, y); `blockSize` slots. */
function drawBlock(context, x, y, size, described, blockSize, theme) {
  const colours = holderColours(described, theme);
  if (described.state === "blank") drawBlank(context, x, y, size, theme);
  else if (described.state === "cached") drawCached(context, x, y, size, theme);
  else if (size >= 30) drawSlots(context, x, y, size, described, blockSize, colours, theme);
  else drawLevel(context, x, y, size, described, blockSize, colours, theme);
  if (size >= 30) drawLabels(context, x, y, size, described, theme);
  if (described.refs > 1 && size >= 7) drawShared(context, x, y, size, described.refs, theme);
}

function drawBlank(context, x, y, size, theme) {
  context.fillStyle = theme.blank;
  fillCell(context, x, y, size);
  if (size < 10) return;
  context.strokeStyle = theme.blankEdge;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
}

function drawCached(context, x, y, size, theme) {
  context.fillStyle = theme.cached;
  fillCell(context, x, y, size);
  context.save();
  context.beginPath();
  context.rect(x, y, size, size);
  context.clip();
  context.strokeStyle = theme.hatch;
  context.lineWidth = size >= 16 ? 1.5 : 1;
  const gap = size >= 24 ? 7 : size >= 12 ? 5 : Math.max(3, size / 2);
  context.beginPath();
  for (let offset = gap / 2; offset < 2 * size; offset += gap) {
    context.moveTo(x + offset, y);
    context.lineTo(x + offset - size, y + size);
  }
  context.stroke();
  context.restore();
}

/** Large: every slot a little square; with several holders the columns of slots take their colours in turn. */
function drawSlots(context, x, y, size, described, blockSize, colours, theme) {
  context.fillStyle = theme.cell;
  fillCell(context, x, y, size);
  const [columns, rows] = slotGrid(blockSize);
  const top = y + slotTop(size);
  const width = (size - 6) / columns;
  const height = (y + size - 3 - top) / rows;
  const gap = Math.min(2, width / 4, height / 4);
  for (let slot = 0; slot < blockSize; slot++) {
    const column = slot % columns;
    const left = x + 3 + column * width + gap / 2;
    const upper = top + Math.floor(slot / columns) * height + gap / 2;
    const colour = colours[Math.floor((column * colours.length) / columns)] ?? theme.muted;
    if (slot < described.filled) {
      context.fillStyle = colour;
      context.fillRect(left, upper, width - gap, height - gap);
    } else if (slot < described.filled + described.planned) {
      context.strokeStyle = colour;
      context.lineWidth = 1;
      context.strokeRect(left + 0.5, upper + 0.5, width - gap - 1, height - gap - 1);
    } else {
      context.fillStyle = theme.slot;
      context.fillRect(left, upper, width - gap, height - gap);
    }
  }
}

/** Small: a level that rises with the fill, striped by holder; what this step adds is a paler layer on top. */
function drawLevel(context, x, y, size, described, blockSize, colours, theme) {
  context.fillStyle = theme.cell;
  fillCell(context, x, y, size);
  const filled = (size * described.filled) / blockSize;
  const planned = (size * described.planned) / blockSize;
  const width = size / Math.max(1, colours.length);
  colours.forEach((colour, i) => {
    context.fillStyle = colour;
    context.fillRect(x + i * width, y + size - filled, width, filled);
    context.globalAlpha = 0.4;
    context.fillRect(x + i * width, y + size - filled - planned, width, planned);
    context.globalAlpha = 1;
  });
}

function drawLabels(context, x, y, size, described, theme) {
  const top = slotTop(size);
  if (top < 8) return;
  context.font = `${Math.min(12, top - 2)}px ${theme.font}`;
  context.textBaseline = "middle";
  context.fillStyle = described.state === "used" ? theme.ink : theme.muted;
  context.textAlign = "left";
  context.fillText(described.block, x + 4, y + top / 2 + 1);
  if (size < 44 || described.entries.length !== 1) return;
  context.fillStyle = theme.muted;
  context.textAlign = "right";
  context.fillText(described.entries[0].view.sequence, x + size - 4, y + top / 2 + 1, size / 2);
}

function drawShared(context, x, y, size, refs, theme) {
  context.strokeStyle = theme.ink;
  context.lineWidth = size >= 16 ? 1.5 : 1;
  context.setLineDash(size >= 16 ? [4, 3] : [2, 1.5]);
  context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
  context.setLineDash([]);
  if (size < 22) return;
  const text = `×${refs}`;
  const height = Math.max(11, Math.min(14, size / 4));
  context.font = `600 ${height - 2}px ${theme.font}`;
  const width = context.measureText(text).width + 6;
  context.fillStyle = theme.badge;
  context.fillRect(x + size - width - 1, y + 1, width, height);
  context.fillStyle = theme.badgeInk;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, x + size - width / 2 - 1, y + 1 + height / 2 + 0.5);
}

/** A bow from one point to another, bent towards `through`; the line takes the dash that is set, the head does not. */
function drawArrow(context, [x0, y0], [x1, y1], [mx, my], head, colour) {
  const angle = Math.atan2(y1 - my, x1 - mx);
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 2.5;
  context.beginPath();
  context.moveTo(x0, y0);
  context.quadraticCurveTo(mx, my, x1, y1);
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x1 - head * Math.cos(angle - 0.45), y1 - head * Math.sin(angle - 0.45));
  context.lineTo(x1 - head * Math.cos(angle + 0.45), y1 - head * Math.sin(angle + 0.45));
  context.fill();
}

/** Columns and rows of the slots in a block: 16 -> 4 x 4, 8 -> 4 x 2, 32 -> 8 x 4. */
function slotGrid(blockSize) {
  const columns = 2 ** Math.ceil(Math.log2(Math.max(1, blockSize)) / 2);
  return [columns, Math.ceil(blockSize / columns)];
}

/** Height of the strip above the slots that holds the block's number. */
function slotTop(size) {
  return size >= 36 ? Math.round(size * 0.3) : 3;
}

function fillCell(context, x, y, size) {
  if (size < 12) {
    context.fillRect(x, y, size, size);
    return;
  }
  context.beginPath();
  context.roundRect(x, y, size, size, Math.min(5, size / 8));
  context.fill();
}
