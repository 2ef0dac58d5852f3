// The chips of a block table: entry by entry the physical block, in its holders' colours as far as it is filled.

/** How the shown entries of a table look, at most `most`, and how full the last is; a string is written as it is. */
function chipLooks(map, view, most, holders, theme) {
  const { length } = view.table;
  const indices = Array.from({ length }, (_, index) => index);
  const inherited = sharedPrefix(map, view);
  const looks = shown => shown.map(index => chipLook(map, view, index, index < inherited, holders, theme));
  const fill = lastFill(map, view);
  if (length <= most) return [...looks(indices), ...fill];
  const head = Math.floor(most / 4);
  const gap = `… ${length - most} more …`;
  return [...looks(indices.slice(0, head)), gap, ...looks(indices.slice(length - most + head)), ...fill];
}

/** "11/16": the filled slots of the last block, unless they are all. */
function lastFill(map, view) {
  const filled = filledSlots(map, view, view.table.length - 1);
  return view.table.length > 0 && filled < map.block_size ? [`${filled}/${map.block_size}`] : [];
}

/** What there is to see of an entry; two looks with the same `key` look the same. */
function chipLook(map, view, index, inherited, holders, theme) {
  const block = view.table[index];
  if (block < 0) return { host: -1 - block, index, key: `h${-1 - block} ${index}` };
  const described = describeBlock(map, block, holders);
  const filled = filledSlots(map, view, index);
  const colours = holderInks(described, theme).map(ink => ink.colour);
  const { refs } = described;
  const key = [block, index, filled, refs, inherited, colours, theme.muted].join();
  return { block, index, filled, size: map.block_size, refs, inherited, colours, other: theme.muted, key };
}

/** How many entries a fork has still in common with the table that it branched from. */
function sharedPrefix(map, view) {
  const parent = map.sequences[view.parent]?.table ?? [];
  const differs = view.table.findIndex((block, index) => block !== parent[index]);
  return differs < 0 ? view.table.length : differs;
}

/** Put chips into a box; `keys`, of those that are there, says which may stay. */
function putChips(box, looks, keys) {
  looks.forEach((look, i) => {
    const key = look.key ?? look;
    if (keys[i] === key) return;
    keys[i] = key;
    if (i < box.children.length) box.children[i].replaceWith(makeChip(look));
    else box.append(makeChip(look));
  });
  while (box.children.length > looks.length) box.lastChild.remove();
  keys.length = looks.length;
}

function makeChip(look) {
  if (typeof look === "string") return make("span", "gap", {}, look);
  const { block, host, index, filled, size, refs, inherited, colours, other } = look;
  if (host !== undefined) {
    const where = `logical ${index} → block ${host} of the host pool: swapped out`;
    return make("span", "chip host", { title: where }, `h${host}`);
  }
  const classes = ["chip", refs > 1 ? "shared" : "", inherited ? "inherited" : ""].filter(Boolean).join(" ");
  const title = `logical ${index} → block ${block}, ${filled} of ${size} slots filled`
    + (refs > 1 ? `, ${refs} references` : "");
  const chip = make("button", classes, { type: "button", "data-block": block, title }, String(block));
  const percent = (100 * filled) / size;
  const width = percent / colours.length;
  const stripes = colours.map((colour, i) => `${colour} ${width * i}% ${width * (i + 1)}%`);
  chip.style.background = `linear-gradient(90deg, ${stripes.join(", ")}, transparent ${percent}%), `
    + `color-mix(in srgb, ${colours.length === 1 ? colours[0] : other} 35%, white)`;
  return chip;
}
