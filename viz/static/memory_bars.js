// KV memory, this instant: how the slots of the pool are divided, beside what contiguous memory of the same size would
// need for the sequences that run now.
//
//     Paged          [tokens tokens|u|free free free free]     4 running       u: unfilled slots of last blocks
//     Contiguous     [tokens|reserved reserved|free free ]     2 of 4 fit

/** Slots of the paged pool: {tokens, allocated, entries}; `entries` counts a shared slot for each table that has it. */
function pagedSplit(map) {
  const filled = new Uint32Array(map.num_blocks);
  let entries = 0;
  for (const view of Object.values(map.sequences)) {
    view.table.forEach((block, index) => {
      if (block < 0) return;
      const slots = filledSlots(map, view, index);
      filled[block] = Math.max(filled[block], slots);
      entries += slots;
    });
  }
  const used = map.ref_count.filter(references => references > 0).length;
  return { tokens: filled.reduce((sum, slots) => sum + slots, 0), allocated: used * map.block_size, entries };
}

class MemoryBars {
  constructor(box, viewer) {
    this.viewer = viewer;
    this.size = make("p", "hint");
    this.bars = Object.fromEntries(["Paged", ...Object.keys(RESERVATIONS)].map(name => [name, this.bar(name)]));
    this.sharing = make("p", "hint");
    const legend = make("ul", "legend", {}, ...["tokens", "unfilled", "reserved", "free"].map(part =>
      make("li", "", {}, make("span", `part ${part}`), part === "unfilled" ? "unfilled slots" : part)));
    box.append(this.size, ...Object.values(this.bars).map(bar => bar.row), legend, this.sharing);
  }

  bar(name) {
    const parts = ["tokens", "unfilled", "reserved"].map(part => make("span", `part ${part}`));
    const track = make("span", "track", { role: "img" }, ...parts);
    const fit = make("span", "count");
    const title = name === "Paged" ? name : `Contiguous, ${name}`;
    const row = make("div", "memory-bar", { "data-memory": name }, make("span", "", {}, title), track, fit);
    return { title, parts, track, fit, row };
  }

  paint() {
    const { map, header } = this.viewer;
    const numSlots = map.num_blocks * map.block_size;
    const longest = longestSequence(header, map);
    const running = runningViews(map);
    const paged = pagedSplit(map);
    setText(this.size, `the same ${numSlots.toLocaleString("en")} slots in each; a sequence has at most `
      + `${longest.toLocaleString("en")} tokens`);
    this.show("Paged", [paged.tokens, paged.allocated - paged.tokens, 0], numSlots, `${running.length} running`);
    for (const [name, reserve] of Object.entries(RESERVATIONS)) {
      const { fit, tokens, reserved } = contiguousSplit(running, reserve, longest, numSlots);
      this.show(name, [tokens, 0, reserved - tokens], numSlots, `${fit} of ${running.length} fit`);
    }
    setText(this.sharing, paged.entries > paged.tokens
      ? `Paged holds each shared prompt once: ${paged.entries} tokens of the tables lie in ${paged.tokens} slots. `
        + "Contiguous repeats it."
      : "No block is shared now. Where prompts are shared, paged holds them once and contiguous repeats them.");
  }

  show(name, slots, numSlots, words) {
    const { title, parts, track, fit } = this.bars[name];
    const [tokens, unfilled, reserved] = slots;
    const text = `${title}: ${tokens} of ${numSlots} slots hold tokens, ${unfilled + reserved} are `
      + `${name === "Paged" ? "unfilled" : "reserved"}, ${numSlots - tokens - unfilled - reserved} are free`;
    if (track.title !== text) {
      track.title = text;
      track.setAttribute("aria-label", text);
      parts.forEach((part, i) => { part.style.width = `${(100 * slots[i]) / numSlots}%`; });
    }
    setText(fit, words);
  }
}

PANELS.memory_bars = { title: "KV memory, this instant", make: (box, viewer) => new MemoryBars(box, viewer) };
