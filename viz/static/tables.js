// The block tables: a row per sequence with its logical -> physical chips, its text as it streams, and why it waits.
// The forks of a sequence stand below it, branching off where their table does.
//
//     A.0                            44 38 47 35 46 6/16
//      └ A.2  fork of A.0 at 74      44 38 47 35 25 11/16       shared entries stand below each other

const FINISHED_SHOWN = 3;
const WAITING_SHOWN = 12;
const LINES_SHOWN = 2;
const UNSEEN_MS = 2000; // between two paintings of a row out of sight
const MANY_ROWS = 24; // more than so many are painted once a second, but for the one that is looked at
const MANY_MS = 1000;
const CHIPS_SHOWN = 1200; // in all rows together; a row has 12 to 64
const NAME_WIDTH = 16; // em, of the column beside the text and the padding
const LETTER_WIDTH = 0.55; // em, about

class Tables {
  constructor(box, viewer) {
    this.box = box;
    this.viewer = viewer;
    this.selection = viewer.selection;
    this.rows = new Map();
    this.unseen = new WeakSet(); // rows out of sight, which are painted less often
    this.sight = new IntersectionObserver(entries => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) this.unseen.add(target);
        else if (this.unseen.delete(target)) this.painted = { at: -Infinity };
      }
      this.viewer.redraw();
    });
    this.later = { timer: 0, due: Infinity };
    this.painted = { at: -Infinity }; // the last time that all rows were: when, and what was to be seen then
    this.allFinished = false;
    this.more = makeButton("", () => {
      this.allFinished = !this.allFinished;
      this.repaint();
    }, { class: "more" });
    this.queue = make("p", "hint");
    this.hint = make("p", "hint", {}, "No sequence yet. Send a prompt above: its tokens are cut into blocks, and each "
      + "row here shows in which physical blocks they lie.");
  }

  paint() {
    const { map, following, theme } = this.viewer;
    const now = performance.now();
    const { block, sequence, token } = this.selection;
    const width = this.box.clientWidth;
    const seen = { at: now, map, theme, width, lookedAt: JSON.stringify([block, sequence, token]) };
    const asBefore = ["map", "theme", "width", "lookedAt"].every(name => seen[name] === this.painted[name]);
    const runs = following && map.halted_after === "";
    if (runs && asBefore && this.rows.size > MANY_ROWS && now - this.painted.at < MANY_MS) {
      if (this.rows.has(sequence) && map.sequences[sequence]) this.row(map.sequences[sequence], now);
      this.paintLater(this.painted.at + MANY_MS);
      return;
    }
    this.painted = seen;
    const room = width / parseFloat(getComputedStyle(this.box).fontSize) - NAME_WIDTH;
    this.letters = Math.max(40, Math.floor((LINES_SHOWN * room) / LETTER_WIDTH));
    this.box.style.setProperty("--digits", String(Math.max(2, String(map.num_blocks - 1).length)));
    const { shown, few, hidden, rest } = this.choose(map);
    this.mostChips = Math.max(12, Math.min(64, Math.floor(CHIPS_SHOWN / shown.length)));
    const wanted = shown.map(view => this.row(view, now));
    if (hidden > 0) {
      setText(this.queue, `and ${hidden} more waiting`);
      wanted.splice(shown.length - few, 0, this.queue);
    }
    setText(this.more, rest > 0 ? `and ${rest} more finished` : "fewer finished");
    if (rest > 0 || this.allFinished) wanted.push(this.more);
    if (shown.length === 0) wanted.push(this.hint);
    const present = [...this.box.children];
    if (wanted.length !== present.length || wanted.some((element, i) => element !== present[i])) {
      this.box.replaceChildren(...wanted);
    }
    for (const name of this.rows.keys()) if (!(name in map.sequences)) this.rows.delete(name);
  }

  /** All rows, soon, whatever was painted when. */
  repaint() {
    this.painted = { at: -Infinity };
    this.viewer.redraw();
  }

  /** Look again at the moment `due`, or before. */
  paintLater(due) {
    if (this.later.due <= due) return;
    clearTimeout(this.later.timer);
    const timer = setTimeout(() => {
      this.later = { timer: 0, due: Infinity };
      this.viewer.redraw();
    }, due - performance.now());
    this.later = { timer, due };
  }

  close() {
    clearTimeout(this.later.timer);
    this.sight.disconnect();
  }

  /** Running ones first, then who waits, then the newest that have finished. */
  choose(map) {
    const views = byRequest(Object.values(map.sequences));
    const of = status => views.filter(view => view.status === status);
    const finished = map.finished.map(name => map.sequences[name]).reverse();
    const newest = this.allFinished ? finished : finished.slice(0, FINISHED_SHOWN);
    const waiting = [...of("preempted"), ...of("waiting")];
    return {
      shown: [...of("running"), ...waiting.slice(0, WAITING_SHOWN), ...newest],
      few: newest.length,
      hidden: Math.max(0, waiting.length - WAITING_SHOWN),
      rest: finished.length - newest.length,
    };
  }

  row(view, now) {
    const { map, holders, theme, header, live } = this.viewer;
    const row = this.rows.get(view.sequence) ?? this.makeRow(view);
    const isWanted = map.halted_after !== "" || view.sequence === this.selection.sequence;
    if (!isWanted && this.unseen.has(row.element) && now - row.paintedAt < UNSEEN_MS) {
      this.paintLater(row.paintedAt + UNSEEN_MS);
      return row.element;
    }
    row.paintedAt = now;
    const { parts } = row;
    const depth = view.status === "finished" ? 0 : depthOf(view, map);
    row.element.className = `sequence ${view.status}${depth ? " fork" : ""}`;
    row.element.style.setProperty("--depth", String(Math.min(depth, 4)));
    parts.swatch.style.background = view.status === "finished" ? "" : theme.laneColour(view.lane);
    parts.name.setAttribute("aria-pressed", String(this.selection.chosen === view.sequence));
    setText(parts.tokens, `${view.token_ids.length} tokens`);
    setText(parts.status, statusWords(view, map));
    parts.abort.hidden = view.status === "finished" || !live;
    this.paintChips(row, view, map, holders, theme);
    row.text.paint(view, this.letters);
    setText(parts.why, whyWords(view, this.viewer));
    return row.element;
  }

  makeRow(view) {
    const name = view.sequence;
    const text = new TokenText(this.viewer, name);
    const parts = {
      swatch: make("span", "swatch"),
      name: make("button", "name", { type: "button", title: `pin ${name}: outline its blocks` }, name),
      tokens: make("span", "count"),
      status: make("span", "status"),
      abort: make("button", "abort", { type: "button", title: `withdraw request ${view.request}`,
        "aria-label": `abort ${view.request}` }, "×"),
      chips: make("div", "chips"),
      why: make("p", "why"),
    };
    const head = make("div", "head", {}, parts.swatch, parts.name, parts.tokens, parts.status, parts.abort);
    const element = make("article", "sequence", { "data-sequence": name }, head,
      make("div", "body", {}, parts.chips, text.box, parts.why));
    const row = { element, parts, text, chips: [], paintedAt: -Infinity };
    this.sight.observe(element);
    const { selection } = this;
    element.addEventListener("pointerenter", () => selection.hoverSequence(name));
    element.addEventListener("pointerleave", () => selection.hoverSequence(null));
    parts.name.addEventListener("click", () => selection.pinSequence(selection.chosen === name ? null : name));
    parts.abort.addEventListener("click", () => this.viewer.send({ command: "abort", request: view.request }));
    const blockOf = event => {
      const chip = event.target.closest("[data-block]");
      return chip ? Number(chip.dataset.block) : null;
    };
    parts.chips.addEventListener("pointerover", event => selection.hover(blockOf(event)));
    parts.chips.addEventListener("focusin", event => selection.hover(blockOf(event)));
    for (const leave of ["pointerleave", "focusout"]) parts.chips.addEventListener(leave, () => selection.hover(null));
    parts.chips.addEventListener("click", event => { if (blockOf(event) !== null) selection.pin(blockOf(event)); });
    this.rows.set(name, row);
    return row;
  }

  paintChips(row, view, map, holders, theme) {
    putChips(row.parts.chips, chipLooks(map, view, this.mostChips, holders, theme), row.chips);
    const { block } = this.selection;
    if (block === null && !row.marked) return;
    row.marked = block !== null;
    for (const chip of row.parts.chips.children) {
      chip.classList.toggle("selected", Number(chip.dataset.block) === block);
    }
  }
}

/** In order of arrival, with the samples of a request side by side, each below the one that it branched from. */
function byRequest(views) {
  const groups = new Map();
  for (const view of views) groups.set(view.request, [...(groups.get(view.request) ?? []), view]);
  return [...groups.values()].flatMap(group => {
    const names = new Set(group.map(view => view.sequence));
    const below = name => group.filter(view => view.parent === name).flatMap(view => [view, ...below(view.sequence)]);
    return group.filter(view => !names.has(view.parent)).flatMap(view => [view, ...below(view.sequence)]);
  });
}

/** How many forks lie between a sequence and the one that it comes from, as far as they still run. */
function depthOf(view, map) {
  let depth = 0;
  const parentOf = child => map.sequences[child.parent];
  for (let parent = parentOf(view); parent && parent.status !== "finished"; parent = parentOf(parent)) depth++;
  return depth;
}
