// Selection: the one place that knows which block, sequence or token a viewer looks at; the map, the tables, the text
// and the detail all follow it. Hovering looks, pinning stays, Escape lets go.

class Selection {
  /** `changed()` is called after every change, `spoken()` after a pin or a step by keyboard; `map()` is the picture. */
  constructor(changed, spoken, map = () => null) {
    Object.assign(this, { changed, spoken, map });
    this.hovered = null; // a block
    this.hoveredSequence = null; // a name
    this.hoveredToken = null; // {sequence, position}
    this.pinned = null;
    this.chosen = null; // the pinned sequence
    this.pinnedToken = null;
  }

  /** The block looked at: the token's or the one under the pointer, else the pinned one. */
  get block() {
    return this.slotOf(this.hoveredToken)?.block ?? this.hovered ?? this.pinnedBlock;
  }

  /** The block that stays: that of the pinned token, wherever the token lies now, or the one pinned itself. */
  get pinnedBlock() {
    return this.slotOf(this.pinnedToken)?.block ?? this.pinned;
  }

  get isPinned() {
    return this.block !== null && this.block === this.pinnedBlock;
  }

  get sequence() {
    return this.hoveredSequence ?? this.chosen;
  }

  /** The token looked at, {sequence, position}, or null. */
  get token() {
    return this.hoveredToken ?? this.pinnedToken;
  }

  /** Where that token's key and value lie on the device, {block, slot}; null if they do not. */
  get slot() {
    return this.slotOf(this.token);
  }

  slotOf(token) {
    const map = this.map();
    const block = token && map?.sequences[token.sequence]?.table[Math.floor(token.position / map.block_size)];
    return block >= 0 && token ? { block, slot: token.position % map.block_size } : null;
  }

  hover(block) {
    this.set({ hovered: block });
  }

  hoverSequence(name) {
    this.set({ hoveredSequence: name });
  }

  hoverToken(sequence, position) {
    const { hoveredToken: before } = this;
    if (before?.sequence === sequence && before?.position === position) return;
    this.set({ hoveredToken: sequence === null ? null : { sequence, position } });
  }

  /** Pin a block; the pinned one again lets go. */
  pin(block) {
    this.set({ pinned: block === this.pinned ? null : block, pinnedToken: null });
    this.spoken();
  }

  /** Pin a sequence: its blocks stay outlined, and "token of the chosen sequence" means it. */
  pinSequence(name) {
    this.set({ chosen: name });
  }

  /** Pin a token; the pinned one again lets go. */
  pinToken(sequence, position) {
    const { pinnedToken: before } = this;
    const again = before?.sequence === sequence && before.position === position;
    this.set({ pinnedToken: again ? null : { sequence, position }, hoveredToken: null, pinned: null });
    this.spoken();
  }

  /** Look at a block by keyboard. */
  walk(block) {
    this.set({ hovered: block });
    this.spoken();
  }

  clear() {
    this.set({
      hovered: null, hoveredSequence: null, hoveredToken: null, pinned: null, chosen: null, pinnedToken: null,
    });
  }

  /** Escape lets go of all that is looked at; where there is nothing, it is left to others. */
  onKey(event) {
    const nothing = this.block === null && this.sequence === null && this.token === null;
    const typing = event.target.closest("input, textarea, select");
    if (event.key !== "Escape" || event.defaultPrevented || typing || nothing) return;
    event.preventDefault();
    this.clear();
  }

  set(fields) {
    const changes = Object.keys(fields).some(name => fields[name] !== this[name]);
    Object.assign(this, fields);
    if (changes) this.changed();
  }

  /** The blocks of the sequence that is looked at. */
  family(map) {
    return map.sequences[this.sequence]?.table ?? [];
  }
}
