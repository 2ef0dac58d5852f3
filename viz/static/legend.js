// The legend: the map's own glyphs, drawn by the same function, each with its count.

function drawLegend(box, theme, blockSize) {
  const entry = lane => ({ view: { lane, sequence: "" }, index: 0 });
  const block = fields => ({ block: "", state: "used", refs: 1, entries: [entry(0)], filled: 0, planned: 0, ...fields });
  const some = Math.max(1, Math.floor(blockSize * 0.6));
  const looks = [
    ["used", "used: solid slots hold tokens", block({ filled: some })],
    ["shared", "shared, in its holders' colours", block({ refs: 2, entries: [entry(0), entry(1)], filled: blockSize })],
    ["cached", "cached (free)", block({ state: "cached", refs: 0, entries: [] })],
    ["blank", "blank (free)", block({ state: "blank", refs: 0, entries: [] })],
    [null, "hollow: filled by this step", block({ planned: some })],
  ];
  const items = looks.map(([state, words, described]) => make("li", "", {},
    glyph(context => drawBlock(context, 3, 3, 30, described, blockSize, theme)),
    ...(state ? [make("b", "", { "data-count": state })] : []), words));
  const arrow = glyph(context => drawArrow(context, [4, 30], [32, 24], [18, 2], 9, theme.accent));
  box.replaceChildren(...items, make("li", "", {}, arrow, "copied; dashed: still to be copied"));
}

function glyph(draw) {
  const scale = window.devicePixelRatio || 1;
  const canvas = make("canvas", "", { width: 36 * scale, height: 36 * scale, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  draw(context);
  return canvas;
}
