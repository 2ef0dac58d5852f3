// Selection: the one place that knows which block or sequence a viewer looks at; the map, the tables and the detail all
// follow it. Hovering looks, pinning stays.

class Selection {
  /** `changed()` is called after every change, `spoken()` when the keyboard chose a block. */
  constructor(changed, spoken) {
    this.hovered = null;
    this.pinned = null;
    this.sequence = null;
    this.changed = changed;
    this.spoken = spoken;
  }

  /** The block looked at: under the pointer, else pinned. */
  get block() {
    return this.hovered ?? this.pinned;
  }

  hover(block) {
    if (block === this.hovered) return;
    this.hovered = block;
    this.changed();
  }

  hoverSequence(name) {
    if (name === this.sequence) return;
    this.sequence = name;
    this.changed();
  }

  /** Pin a block; the pinned one again lets go. */
  pin(block) {
    this.pinned = block === this.pinned ? null : block;
    this.changed();
    this.spoken();
  }

  /** Look at a block by keyboard. */
  walk(block) {
    this.hovered = block;
    this.changed();
    this.spoken();
  }

  clear() {
    this.hovered = this.pinned = this.sequence = null;
    this.changed();
  }

  /** The blocks of the sequence that is looked at. */
  family(map) {
    return map.sequences[this.sequence]?.table ?? [];
  }
}
