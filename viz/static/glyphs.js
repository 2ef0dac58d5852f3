// How one block is drawn: the same glyphs on the map, in its legend and in its picture. Colour never speaks alone:
// shared blocks have a dashed outline and a count, cached ones a hatch, filled slots are solid and planned ones
// hollow.
//
//     25   A.2      number and owner, where there is room
//     # # # #       filled slots
//     # # o .       o planned by this step, . empty

const LABELLED_CELL = 30; // px: from here on slots and numbers, below levels

/** Draw a block as `BlockLooks` sees it into the square at (x, y); `blockSize` slots. */
function drawBlock(context, x, y, size, look, blockSize, theme) {
  if (look.state === "blank") drawBlank(context, x, y, size, theme);
  else if (look.state === "cached") drawCached(context, x, y, size, look.inks[0]?.colour ?? theme.cached, theme);
  else if (size >= LABELLED_CELL) drawSlots(context, x, y, size, look, blockSize, theme);
  else drawLevel(context, x, y, size, look, blockSize, theme);
  if (size >= LABELLED_CELL) drawLabels(context, x, y, size, look, theme);
  if (look.refs > 1 && size >= 7) drawShared(context, x, y, size, look.refs, theme);
}

function drawBlank(context, x, y, size, theme) {
  context.fillStyle = theme.blank;
  fillCell(context, x, y, size);
  if (size < 10) return;
  context.strokeStyle = theme.blankEdge;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
}

function drawCached(context, x, y, size, colour, theme) {
  context.fillStyle = colour;
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

/**
 * Large: every slot a little square. With several holders the columns of slots take their inks in turn; with more holders
 * than columns each slot is striped with all of them.
 */
function drawSlots(context, x, y, size, { filled, planned, inks }, blockSize, theme) {
  context.fillStyle = theme.cell;
  fillCell(context, x, y, size);
  const [columns] = slotGrid(blockSize);
  for (let slot = 0; slot < blockSize; slot++) {
    const [left, upper, width, height] = slotPlace(x, y, size, slot, blockSize);
    const column = slot % columns;
    const { colour, mark } = inks[Math.floor((column * inks.length) / columns)] ?? { colour: theme.muted, mark: 0 };
    if (slot < filled) {
      const stripes = inks.length > columns ? inks : [{ colour }];
      stripes.forEach((stripe, i) => {
        context.fillStyle = stripe.colour;
        context.fillRect(left + (i * width) / stripes.length, upper, width / stripes.length, height);
      });
      if (stripes.length === 1) drawMark(context, left + width / 2, upper + height / 2, Math.min(width, height), mark);
    } else if (slot < filled + planned) {
      context.strokeStyle = colour;
      context.lineWidth = 1;
      context.strokeRect(left + 0.5, upper + 0.5, width - 1, height - 1);
    } else {
      context.fillStyle = theme.slot;
      context.fillRect(left, upper, width, height);
    }
  }
}

/** [x, y, width, height] of a slot in the block drawn at (x, y). */
function slotPlace(x, y, size, slot, blockSize) {
  const [columns, rows] = slotGrid(blockSize);
  const top = slotTop(size);
  const width = (size - 6) / columns;
  const height = (size - 3 - top) / rows;
  const gap = Math.min(2, width / 4, height / 4);
  return [x + 3 + (slot % columns) * width + gap / 2, y + top + Math.floor(slot / columns) * height + gap / 2,
    width - gap, height - gap];
}

/** The sign of a later round of colours in the middle of a filled slot: a dot, a bar, a cross. */
function drawMark(context, x, y, size, mark) {
  if (mark === 0 || size < 5) return;
  const half = size * 0.22;
  context.fillStyle = "rgb(16 20 26 / 75%)";
  if (mark === 1) context.fillRect(x - half, y - half, 2 * half, 2 * half);
  if (mark > 1) context.fillRect(x - 1.6 * half, y - half / 2, 3.2 * half, half);
  if (mark > 2) context.fillRect(x - half / 2, y - 1.6 * half, half, 3.2 * half);
}

/** Small: a level that rises with the fill, striped by holder; what this step adds is a paler layer on top. */
function drawLevel(context, x, y, size, look, blockSize, theme) {
  context.fillStyle = theme.cell;
  fillCell(context, x, y, size);
  const filled = (size * look.filled) / blockSize;
  const planned = (size * look.planned) / blockSize;
  const width = size / Math.max(1, look.inks.length);
  look.inks.forEach(({ colour }, i) => {
    context.fillStyle = colour;
    context.fillRect(x + i * width, y + size - filled, width, filled);
    context.globalAlpha = 0.4;
    context.fillRect(x + i * width, y + size - filled - planned, width, planned);
    context.globalAlpha = 1;
  });
}

/** Number and, where there is room, owner; over the hatching of a cached block the number stands on a plate. */
function drawLabels(context, x, y, size, look, theme) {
  const top = slotTop(size);
  if (top < 8) return;
  const height = Math.min(12, top - 2);
  const middle = y + top / 2 + 1;
  context.font = `${height}px ${theme.font}`;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const { width } = context.measureText(look.block);
  if (look.state === "cached") {
    context.fillStyle = theme.panel;
    context.fillRect(x + 2, middle - height / 2 - 1, width + 4, height + 1);
  }
  context.fillStyle = look.state === "blank" ? theme.muted : theme.ink;
  context.fillText(look.block, x + 4, middle);
  const owner = look.entries.length === 1 ? look.entries[0].view.sequence : "";
  if (!owner || width + context.measureText(owner).width + 12 > size) return;
  context.fillStyle = theme.muted;
  context.textAlign = "right";
  context.fillText(owner, x + size - 4, middle);
}

function drawShared(context, x, y, size, refs, theme) {
  const width = size >= 16 ? 1.5 : 1;
  context.strokeStyle = theme.ink;
  context.lineWidth = width;
  context.setLineDash(size >= 16 ? [4, 3] : [2, 1.5]);
  context.strokeRect(x + width / 2, y + width / 2, size - width, size - width);
  context.setLineDash([]);
  if (size < 22) return;
  const text = `×${refs}`;
  const height = Math.max(11, Math.min(14, size / 4));
  context.font = `600 ${height - 2}px ${theme.font}`;
  const room = context.measureText(text).width + 6;
  context.fillStyle = theme.badge;
  context.fillRect(x + size - room - 1, y + 1, room, height);
  context.fillStyle = theme.badgeInk;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, x + size - room / 2 - 1, y + 1 + height / 2 + 0.5);
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
