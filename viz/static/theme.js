// The colours of the page's theme, read from its CSS once per theme.
//
// A sequence's lane chooses its ink: twelve colours, then the same twelve darker and with a dot in every slot, then
// paler and with a bar. Two lanes look alike again only after twelve rounds.

const NUM_LANES = 12;
const NUM_RAMP = 8;
const NUM_MARKS = 4;
const TONES = [null, { towards: [16, 20, 26], by: 0.3 }, { towards: [255, 255, 255], by: 0.45 }];

class Theme {
  constructor(element) {
    const style = getComputedStyle(element);
    const read = name => style.getPropertyValue(`--${name}`).trim();
    this.known = new Map(); // colour -> [red, green, blue]
    this.probe = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    this.lanes = Array.from({ length: NUM_LANES }, (_, lane) => read(`lane-${lane}`));
    this.ramp = Array.from({ length: NUM_RAMP }, (_, i) => read(`ramp-${i}`));
    for (const name of ["blank", "blank-edge", "cached", "hatch", "cell", "slot", "ink", "muted", "accent", "badge",
      "badge-ink", "panel"]) {
      this[name.replace(/-(.)/, (_, letter) => letter.toUpperCase())] = read(name);
    }
    this.font = style.fontFamily;
    this.inks = [];
  }

  laneColour(lane) {
    return this.laneInk(lane).colour;
  }

  /** {colour, mark} of a lane; `mark` says which of a few signs stands in its filled slots, 0 for none. */
  laneInk(lane) {
    if (!this.inks[lane]) {
      const round = Math.floor(lane / NUM_LANES);
      const plain = this.lanes[lane % NUM_LANES];
      const tone = TONES[round % TONES.length];
      const colour = tone ? `rgb(${blend(this.rgb(plain), tone.towards, tone.by).join(" ")})` : plain;
      this.inks[lane] = { colour, mark: round % NUM_MARKS };
    }
    return this.inks[lane];
  }

  /** [red, green, blue] of any CSS colour. */
  rgb(colour) {
    if (!this.known.has(colour)) {
      this.probe.fillStyle = colour;
      this.probe.fillRect(0, 0, 1, 1);
      this.known.set(colour, [...this.probe.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
    }
    return this.known.get(colour);
  }
}

/** The colour `part` of the way from one to another, each [red, green, blue]. */
function blend(from, to, part) {
  return from.map((value, i) => Math.round(value + (to[i] - value) * part));
}
