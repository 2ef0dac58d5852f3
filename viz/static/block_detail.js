// What lies in the block that a viewer looks at: state, holders, fill, tokens, and what led to it; above it the address of
// the token that is looked at. Each part is built anew only when it has changed, so that what is focused stays so.

class BlockDetail {
  constructor(box, viewer) {
    this.box = box;
    this.viewer = viewer;
    this.hint = make("p", "hint", {}, "Point at a block or at a token, or walk with the arrow keys, to see who holds it, "
      + "which tokens lie in it and why. A click pins it; Escape lets go.");
    this.address = new Address(viewer);
    this.parts = {};
    this.shown = {};
    for (const name of ["title", "holders", "facts", "tokens", "causes"]) this.parts[name] = make("div", name);
    this.block = make("div", "block", {}, ...Object.values(this.parts));
    box.append(this.hint, this.address.box, this.block);
  }

  paint() {
    const { selection, map, holders, history } = this.viewer;
    const { block } = selection;
    const known = block !== null && block < map.num_blocks;
    this.address.paint();
    this.block.hidden = !known;
    this.box.classList.toggle("passing", !selection.isPinned && selection.pinnedToken === null);
    if (known || !this.address.box.hidden) this.hint.remove();
    else if (!this.hint.isConnected) this.block.before(this.hint);
    if (!known) return;
    const described = describeBlock(map, block, holders);
    const pinned = selection.isPinned;
    this.set("title", [block, pinned], () => this.title(block, pinned));
    const held = described.entries.map(({ view, index }) => [view.sequence, index, selection.chosen === view.sequence]);
    this.set("holders", held, () => this.holders(held));
    const facts = factsOf(map, described);
    this.set("facts", facts, () => [make("dl", "", {}, ...facts.flatMap(([name, value]) =>
      [make("dt", "", {}, name), make("dd", "", {}, value)]))]);
    const tokens = tokensIn(map, described);
    this.set("tokens", [tokens, selection.slot], () => [this.tokens(tokens)]);
    this.set("causes", [map.last_touched[block], map.allocated_in[block], history.oldest], () => this.causes(block));
  }

  set(name, signature, build) {
    const text = JSON.stringify(signature);
    if (this.shown[name] === text) return;
    this.shown[name] = text;
    this.parts[name].replaceChildren(...build());
  }

  title(block, pinned) {
    const history = make("button", "", { type: "button", title: "the events that were about this block" },
      "history of this block");
    history.addEventListener("click", () => {
      const { panels, selection } = this.viewer;
      if (selection.pinnedBlock !== block) selection.pin(block);
      panels.show("events");
      panels.open.events.showOnly("block");
    });
    return [make("h3", "", {}, `Block ${block}`, ...(pinned ? [make("small", "", {}, "pinned")] : [])), history];
  }

  holders(held) {
    if (held.length === 0) return [];
    const buttons = held.map(([name, index, chosen]) => {
      const button = make("button", "holder", { type: "button", "aria-pressed": chosen, title: `pin ${name}` },
        `${name} (logical ${index})`);
      button.addEventListener("click", () => this.viewer.selection.pinSequence(chosen ? null : name));
      return button;
    });
    return [make("span", "", {}, "held by "), ...buttons];
  }

  tokens(tokens) {
    const { slot } = this.viewer.selection;
    return make("p", "tokens", {}, ...tokens.map(({ text, planned, sequence, position }, index) => {
      const look = ["token", planned ? "planned" : "", slot?.slot === index ? "picked" : ""].filter(Boolean).join(" ");
      if (!sequence) return make("span", look, { title: `slot ${index}` }, text);
      const title = `slot ${index}: token ${position} of ${sequence}`;
      const button = make("button", look, { type: "button", title }, text);
      button.addEventListener("click", () => this.viewer.selection.pinToken(sequence, position));
      return button;
    }));
  }

  causes(block) {
    const { map, history } = this.viewer;
    const last = history.event(map.last_touched[block]);
    const origin = originOf(block, map, history);
    const lines = [];
    if (origin) lines.push(chainLine(this.viewer, "Why it is in use:", origin));
    if (last && last.cause !== origin?.cause) lines.push(chainLine(this.viewer, "Last change:", last));
    return lines;
  }
}

function factsOf(map, described) {
  const { state, refs, filled, planned, sealed } = described;
  const facts = [["state", stateWords(state, refs)]];
  if (state !== "blank") {
    facts.push(["filled", `${filled} of ${map.block_size}` + (planned ? `, ${planned} more in this step` : "")]);
    facts.push(["sealed", sealed ? `${map.hash[described.block].slice(0, 12)}…` : "not yet: found by hash once full"]);
  }
  return facts;
}

function stateWords(state, refs) {
  if (state === "used") return refs === 1 ? "used, 1 reference" : `used and shared, ${refs} references`;
  return state === "cached" ? "cached: free, its tokens can still be found" : "blank: free, holds nothing";
}

/** Slot by slot what lies in a block, with a sequence and position by which to speak of it where a table holds it. */
function tokensIn(map, described) {
  const [first] = described.entries;
  return textsInBlock(map, described).map((text, slot) => ({
    text: visible(text) || "·", planned: slot >= described.filled,
    sequence: first?.view.sequence, position: first && first.index * map.block_size + slot,
  }));
}

/** One block in words, for those who do not see the map. */
function blockInWords(map, block, holders) {
  const described = describeBlock(map, block, holders);
  const held = described.entries.map(({ view, index }) => `${view.sequence} (logical ${index})`).join(", ");
  const facts = factsOf(map, described).map(([name, value]) => (name === "state" ? value : `${name} ${value}`));
  return `Block ${block}: ${[...facts, ...(held ? [`held by ${held}`] : [])].join("; ")}.`;
}
