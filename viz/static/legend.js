// The legend: the map's own glyphs, drawn by the same functions, each with what it means under the chosen colouring.

const GLYPH = 36; // px, of the square that a glyph is drawn in

/** [{state, words, draw(context)}]; `state` names what a viewer may count beside the words, null for nothing. */
function legendItems(colouring, theme, blockSize, hasHost) {
  const [one, two] = [theme.laneInk(0), theme.laneInk(1)];
  const plain = { block: "", state: "used", refs: 1, entries: [], filled: 0, planned: 0, inks: [one] };
  const block = fields => ({ ...plain, ...fields });
  const some = Math.max(1, Math.floor(blockSize * 0.6));
  const item = (state, words, look) => (
    { state, words, draw: context => drawBlock(context, 3, 3, 30, look, blockSize, theme) });
  const cached = item("cached", "hatched: cached (free)", block({ state: "cached", refs: 0, inks: [] }));
  const blank = item("blank", "blank (free)", block({ state: "blank", refs: 0, inks: [] }));
  const { classes } = COLOURINGS[colouring];
  if (classes.length > 0) {
    const inks = classes.map((_, number) => classInk(number, classes, theme));
    const ramp = classes.map((words, i) => item(null, words, block({ inks: [inks[i]], filled: blockSize })));
    return [...ramp, cached, blank];
  }
  const arrow = context => drawArrow(context, [4, 30], [32, 24], [18, 2], 9, theme.accent);
  return [
    item("used", "used: solid slots hold tokens", block({ filled: some })),
    item("shared", "shared, in its holders' colours", block({ refs: 2, inks: [one, two], filled: blockSize })),
    cached,
    blank,
    item(null, "hollow: filled by this step", block({ planned: some })),
    { state: null, draw: arrow, words: `copied${hasHost ? " or swapped" : ""}; dashed: still to be copied` },
  ];
}

function showLegend(box, items) {
  box.replaceChildren(...items.map(({ state, words, draw }) => {
    const canvas = make("canvas", "", { "aria-hidden": "true" });
    draw(sizeCanvas(canvas, GLYPH, GLYPH, window.devicePixelRatio || 1));
    return make("li", "", {}, canvas, ...(state ? [make("b", "", { "data-count": state })] : []), words);
  }));
}
