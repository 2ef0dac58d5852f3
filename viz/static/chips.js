// The chips of a block table: entry by entry the physical block, in its holders' colours as far as it is filled.

const CHIPS_SHOWN = 64;

/** How the shown entries of a table look; a string stands for those left out in between. */
function chipLooks(map, view, holders, theme) {
  const { length } = view.table;
  const indices = Array.from({ length }, (_, index) => index);
  const looks = shown => shown.map(index => chipLook(map, view, index, holders, theme));
  if (length <= CHIPS_SHOWN) return looks(indices);
  const head = CHIPS_SHOWN / 4;
  const gap = `… ${length - CHIPS_SHOWN} more …`;
  return [...looks(indices.slice(0, head)), gap, ...looks(indices.slice(length - CHIPS_SHOWN + head))];
}

function chipLook(map, view, index, holders, theme) {
  const block = view.table[index];
  if (block < 0) return hostLook(-1 - block, index);
  const described = describeBlock(map, block, holders);
  const filled = filledSlots(map, view, index);
  const percent = (100 * filled) / map.block_size;
  const colours = holderColours(described, theme);
  const width = percent / colours.length;
  const stripes = colours.map((colour, i) => `${colour} ${width * i}% ${width * (i + 1)}%`);
  return {
    block, shared: described.refs > 1,
    background: `linear-gradient(90deg, ${stripes.join(", ")}, transparent ${percent}%), `
      + `color-mix(in srgb, ${colours.length === 1 ? colours[0] : theme.muted} 35%, white)`,
    title: `logical ${index} → block ${block}, ${filled} of ${map.block_size} slots filled`
      + (described.refs > 1 ? `, ${described.refs} references` : ""),
  };
}

/** A swapped-out entry: a block of the host pool, which no cell of the map shows. */
function hostLook(hostBlock, index) {
  return { host: `h${hostBlock}`, title: `logical ${index} → block ${hostBlock} of the host pool: swapped out` };
}

function makeChip(look) {
  if (typeof look === "string") return make("span", "gap", {}, look);
  if (look.host) return make("span", "chip host", { title: look.title }, look.host);
  const { block, shared, background, title } = look;
  const classes = shared ? "chip shared" : "chip";
  const chip = make("button", classes, { type: "button", "data-block": block, title }, String(block));
  chip.style.background = background;
  return chip;
}
