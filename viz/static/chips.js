// The chips of a block table: entry by entry the physical block, in its holders' colours as far as it is filled.

const CHIPS_SHOWN = 64;

/** How the shown entries of a table look, and how full the last is; a string is written as it is. */
function chipLooks(map, view, holders, theme) {
  const { length } = view.table;
  const indices = Array.from({ length }, (_, index) => index);
  const looks = shown => shown.map(index => chipLook(map, view, index, holders, theme));
  const fill = lastFill(map, view);
  if (length <= CHIPS_SHOWN) return [...looks(indices), ...fill];
  const head = CHIPS_SHOWN / 4;
  const gap = `… ${length - CHIPS_SHOWN} more …`;
  return [...looks(indices.slice(0, head)), gap, ...looks(indices.slice(length - CHIPS_SHOWN + head)), ...fill];
}

/** "11/16": the filled slots of the last block, unless they are all. */
function lastFill(map, view) {
  const filled = filledSlots(map, view, view.table.length - 1);
  return view.table.length > 0 && filled < map.block_size ? [`${filled}/${map.block_size}`] : [];
}

function chipLook(map, view, index, holders, theme) {
  const block = view.table[index];
  if (block < 0) return hostLook(-1 - block, index);
  const described = describeBlock(map, block, holders);
  const filled = filledSlots(map, view, index);
  const percent = (100 * filled) / map.block_size;
  const colours = holderInks(described, theme).map(ink => ink.colour);
  const width = percent / colours.length;
  const stripes = colours.map((colour, i) => `${colour} ${width * i}% ${width * (i + 1)}%`);
  return {
    block, shared: described.refs > 1, inherited: index < sharedPrefix(map, view),
    background: `linear-gradient(90deg, ${stripes.join(", ")}, transparent ${percent}%), `
      + `color-mix(in srgb, ${colours.length === 1 ? colours[0] : theme.muted} 35%, white)`,
    title: `logical ${index} → block ${block}, ${filled} of ${map.block_size} slots filled`
      + (described.refs > 1 ? `, ${described.refs} references` : ""),
  };
}

/** How many entries a fork has still in common with the table that it branched from. */
function sharedPrefix(map, view) {
  const parent = map.sequences[view.parent]?.table ?? [];
  const differs = view.table.findIndex((block, index) => block !== parent[index]);
  return differs < 0 ? view.table.length : differs;
}

/** A swapped-out entry: a block of the host pool, which no cell of the map shows. */
function hostLook(hostBlock, index) {
  return { host: `h${hostBlock}`, title: `logical ${index} → block ${hostBlock} of the host pool: swapped out` };
}

function makeChip(look) {
  if (typeof look === "string") return make("span", "gap", {}, look);
  if (look.host) return make("span", "chip host", { title: look.title }, look.host);
  const { block, shared, inherited, background, title } = look;
  const classes = ["chip", shared ? "shared" : "", inherited ? "inherited" : ""].filter(Boolean).join(" ");
  const chip = make("button", classes, { type: "button", "data-block": block, title }, String(block));
  chip.style.background = background;
  return chip;
}
