// A picture of the whole block map to carry away: every block however far the viewer had zoomed, the host lane, the
// legend and a line that says where and when it was taken.

const PICTURE_WIDTH = 1600;
const PICTURE_ROOM = 1000;
const PICTURE_MARGIN = 24;
const PICTURE_LINE = 40; // px, of a line of the legend

/** Returns a Promise of the PNG as a Blob. `caption` stands below the map. */
function drawMapPicture(looks, colouring, numHostBlocks, caption) {
  const { map, theme } = looks;
  const view = new MapView();
  const lane = new HostLane();
  view.layOut(map.num_blocks, PICTURE_WIDTH, PICTURE_ROOM, 1);
  lane.layOut(numHostBlocks, PICTURE_WIDTH, view.height, 1);
  const canvas = document.createElement("canvas");
  const legend = legendItems(colouring, theme, map.block_size, numHostBlocks > 0);
  const items = placeItems(canvas.getContext("2d"), legend, theme);
  const below = view.height + lane.height + 16;
  const lines = items.at(-1).line + 1;
  canvas.width = PICTURE_WIDTH + 2 * PICTURE_MARGIN;
  canvas.height = below + lines * PICTURE_LINE + 32 + 2 * PICTURE_MARGIN;
  const context = canvas.getContext("2d");
  context.fillStyle = theme.panel;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.translate(PICTURE_MARGIN, PICTURE_MARGIN);
  view.forVisible(block => {
    drawBlock(context, ...view.corner(block), view.cell, looks.look(block), map.block_size, theme);
  });
  lane.paint(context, looks, theme);
  context.translate(0, below);
  for (const { x, line, words, draw } of items) {
    context.save();
    context.translate(x, line * PICTURE_LINE);
    draw(context);
    context.restore();
    write(context, words, x + GLYPH + 6, line * PICTURE_LINE + GLYPH / 2, theme.muted, theme);
  }
  write(context, caption, 0, lines * PICTURE_LINE + 16, theme.ink, theme);
  return new Promise(resolve => canvas.toBlob(resolve, "image/png"));
}

/** The legend's items with the place of each, wrapped into lines. */
function placeItems(context, items, theme) {
  context.font = `15px ${theme.font}`;
  let [x, line] = [0, 0];
  return items.map(item => {
    const width = GLYPH + 6 + context.measureText(item.words).width + 24;
    if (x > 0 && x + width > PICTURE_WIDTH) [x, line] = [0, line + 1];
    const placed = { ...item, x, line };
    x += width;
    return placed;
  });
}

function write(context, text, x, y, colour, theme) {
  context.font = `15px ${theme.font}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = colour;
  context.fillText(text, x, y);
}
