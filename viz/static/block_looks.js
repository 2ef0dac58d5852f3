// What colour means on the map: who owns a block, how many references it has, how old it is, or when it was last
// read. The last three fall into a few classes each, so that the legend can name every colour that the map shows.
//
//     steps since    0   1-2   3-6   7-14   15-30 ...      class = floor(log2(1 + steps))
//     references     1    2    3-4    5-8    9-16 ...      class = ceil(log2(references))

const STEP_CLASSES = ["this step", "1–2 steps ago", "3–6", "7–14", "15–30", "31–62", "63–126", "127 or more"];
const REFERENCE_CLASSES = ["1 reference", "2", "3–4", "5–8", "9–16", "17 or more"];
const STATE_NUMBERS = { blank: 1, cached: 2, used: 3 };

const stepClass = steps => (
  steps === null ? null : Math.min(STEP_CLASSES.length - 1, Math.floor(Math.log2(1 + steps))));
const referenceClass = refs => (
  refs < 1 ? null : Math.min(REFERENCE_CLASSES.length - 1, Math.ceil(Math.log2(refs))));

/** Name -> its title, its classes from the strongest colour to the weakest, and the class of a block (null: none). */
const COLOURINGS = {
  owner: { title: "owner", classes: [] },
  references: {
    title: "references", classes: [...REFERENCE_CLASSES].reverse(),
    classOf: (map, block) => {
      const number = referenceClass(map.ref_count[block]);
      return number === null ? null : REFERENCE_CLASSES.length - 1 - number;
    },
  },
  age: {
    title: "age", classes: STEP_CLASSES.map((words, i) => (i === 0 ? `allocated ${words}` : words)),
    classOf: (map, block, holders) => stepClass(stepsSince(map, block, holders).allocated),
  },
  read: {
    title: "last read", classes: STEP_CLASSES.map((words, i) => (i === 0 ? `read in ${words}` : words)),
    classOf: (map, block, holders) => stepClass(stepsSince(map, block, holders).read),
  },
};

/** How the blocks of one picture look under one colouring. */
class BlockLooks {
  constructor(map, holders, theme, colouring) {
    Object.assign(this, { map, holders, theme, colouring: COLOURINGS[colouring] });
  }

  /** A number that differs whenever the look of the block does. */
  signature(block) {
    const { map, holders } = this;
    const kind = STATE_NUMBERS[map.state[block]] * 16 + (this.classOf(block) ?? 15);
    return mix(mix(holders.looks[block], kind), map.ref_count[block]);
  }

  /** What `drawBlock` draws: the block, with the inks of its tokens. */
  look(block) {
    const described = describeBlock(this.map, block, this.holders);
    const number = this.classOf(block);
    if (number === null) return { ...described, inks: holderInks(described, this.theme) };
    return { ...described, inks: [classInk(number, this.colouring.classes, this.theme)] };
  }

  hostLook(hostBlock) {
    const described = describeHostBlock(this.map, hostBlock, this.holders);
    return { ...described, inks: holderInks(described, this.theme) };
  }

  /** The block as one pixel: its ink, the paler the emptier it is. */
  pixel(block) {
    const { theme, map } = this;
    const { state, filled, planned, inks } = this.look(block);
    if (state === "blank") return theme.rgb(theme.blankEdge);
    if (state === "cached") return blend(theme.rgb(theme.cached), theme.rgb(inks[0]?.colour ?? theme.hatch), 0.6);
    const full = 0.3 + (0.7 * (filled + planned / 2)) / map.block_size;
    return blend(theme.rgb(theme.cell), theme.rgb(inks[0]?.colour ?? theme.muted), full);
  }

  classOf(block) {
    return this.colouring.classOf?.(this.map, block, this.holders) ?? null;
  }
}

/** The ink of each of a block's holders, each once, in the order of their tables. */
function holderInks(described, theme) {
  const lanes = new Set(described.entries.map(({ view }) => view.lane));
  return [...lanes].map(lane => theme.laneInk(lane));
}

/** The ink of a class, from the theme's ramp. */
function classInk(number, classes, theme) {
  const last = theme.ramp.length - 1;
  return { colour: theme.ramp[last - Math.round((number * last) / (classes.length - 1))], mark: 0 };
}
