// What lies in the block that a viewer looks at: state, holders, fill, tokens, and what led to it; above it the address
// of the token that is looked at. Each part is built anew only when it has changed, so that what is focused stays so.

const WHYS_SHOWN = 6;

class BlockDetail {
  constructor(box, viewer) {
    this.box = box;
    this.viewer = viewer;
    this.hint = make("p", "hint", {}, "Point at a block or at a token, or walk with the arrow keys, to see who holds "
      + "it, which tokens lie in it and why. A click pins it; Escape lets go.");
    this.address = new Address(viewer);
    this.parts = {};
    this.shown = {};
    for (const name of ["title", "holders", "facts", "tokens", "causes"]) this.parts[name] = make("div", name);
    this.block = make("div", "block", {}, ...Object.values(this.parts));
    this.letGo = makeButton("×", () => viewer.selection.clear(),
      { class: "let-go", title: "let go (Escape)", "aria-label": "let go of what is pinned" });
    box.append(this.letGo, this.hint, this.address.box, this.block);
  }

  paint() {
    const { selection, map, holders, history } = this.viewer;
    const { block } = selection;
    const known = block !== null && block < map.num_blocks;
    this.address.paint();
    this.block.hidden = !known;
    this.letGo.hidden = selection.pinnedBlock === null && selection.pinnedToken === null;
    if (known || !this.address.box.hidden) this.hint.remove();
    else if (!this.hint.isConnected) this.address.box.before(this.hint);
    if (!known) return;
    const described = describeBlock(map, block, holders);
    const pinned = selection.isPinned;
    this.set("title", [block, pinned], () => this.title(block, pinned));
    const held = described.entries.map(({ view, index }) => [view.sequence, index, selection.chosen === view.sequence]);
    const leaving = comingReleases(block, described, map, history);
    this.set("holders", [held, leaving], () => this.holders(held, leaving, map.seq));
    const facts = factsOf(map, described);
    this.set("facts", facts, () => [make("dl", "", {}, ...facts.flatMap(([name, value]) =>
      [make("dt", "", {}, name), make("dd", "", {}, value)]))]);
    const tokens = tokensIn(map, described);
    this.set("tokens", [tokens, selection.slot], () => [this.tokens(tokens)]);
    const last = lastChangeOf(block, map, history);
    this.set("causes", [last?.seq, map.allocated_in[block], described.entries.map(({ view }) => view.sequence),
      history.oldest], () => this.causes(described, last));
  }

  set(name, signature, build) {
    const text = JSON.stringify(signature);
    if (this.shown[name] === text) return;
    this.shown[name] = text;
    this.parts[name].replaceChildren(...build());
  }

  title(block, pinned) {
    const history = makeButton("history of this block", () => {
      const { panels, selection } = this.viewer;
      if (selection.pinnedBlock !== block) selection.pin(block);
      panels.show("events");
      panels.open.events.showOnly("block");
    }, { title: "the events that were about this block" });
    return [make("h3", "", {}, `Block ${block}`, ...(pinned ? [make("small", "", {}, "pinned")] : [])), history];
  }

  /** Who holds the block, and who still counts until its release is said: a copy moves a table before that. */
  holders(held, leaving, now) {
    if (held.length + leaving.length === 0) return [];
    const { selection } = this.viewer;
    const buttons = held.map(([name, index, chosen]) => makeButton(`${name} (logical ${index})`,
      () => selection.pinSequence(chosen ? null : name),
      { class: "holder", "aria-pressed": chosen, title: `pin ${name}` }));
    const due = leaving.map(({ sequence, seq }) => make("span", "", {}, `and ${sequence} until it lets go `,
      eventLink(this.viewer, seq, seq === now + 1 ? "(next event)" : `(in ${seq - now} events)`)));
    return [make("span", "", {}, "held by "), ...buttons, ...due];
  }

  tokens(tokens) {
    const { selection } = this.viewer;
    const { slot } = selection;
    return make("p", "tokens", {}, ...tokens.map(({ text, planned, sequence, position }, index) => {
      const look = ["token", planned ? "planned" : "", slot?.slot === index ? "picked" : ""].filter(Boolean).join(" ");
      if (!sequence) return make("span", look, { title: `slot ${index}` }, text);
      const title = `slot ${index}: token ${position} of ${sequence}`;
      return makeButton(text, () => selection.pinToken(sequence, position), { class: look, title });
    }));
  }

  /** Why each holder has the block, where its tokens are from if that was another, and what changed last. */
  causes({ block, entries }, last) {
    const { viewer } = this;
    const { map, history } = viewer;
    const origin = originOf(block, map, history);
    const taken = takenBy(block, entries, origin, map, history);
    const line = (title, event) => chainLine(viewer, title, event);
    const lines = taken.slice(0, WHYS_SHOWN).map(([name, event]) =>
      line(entries.length === 1 ? "Why it is in use:" : `Why ${name} holds it:`, event));
    if (taken.length > WHYS_SHOWN) lines.push(make("p", "hint", {}, `and ${taken.length - WHYS_SHOWN} more`));
    const told = taken.map(([, event]) => event);
    if (origin && !told.includes(origin)) lines.push(line("Where it is from:", origin));
    if (last && !told.includes(last) && last.cause !== origin?.cause) lines.push(line("Last change:", last));
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
