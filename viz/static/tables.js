// The block tables: a row per sequence with its logical -> physical chips, its text as it streams, and why it waits.

const FINISHED_SHOWN = 3;
const WAITING_SHOWN = 12;
const LINES_SHOWN = 2;
const NAME_WIDTH = 16; // em, of the column beside the text and the padding
const LETTER_WIDTH = 0.55; // em, about

class Tables {
  /** `selection` follows the pointer; `abort(request)` withdraws one. */
  constructor(box, selection, abort) {
    this.box = box;
    this.selection = selection;
    this.abort = abort;
    this.rows = new Map();
    this.open = new Set(); // sequences whose whole text is shown
    this.allFinished = false;
    this.more = make("button", "more", { type: "button" });
    this.more.addEventListener("click", () => {
      this.allFinished = !this.allFinished;
      this.repaint();
    });
    this.queue = make("p", "hint");
    this.hint = make("p", "hint", {}, "No sequence yet. Send a prompt above: its tokens are cut into blocks, and each row "
      + "here shows in which physical blocks they lie.");
  }

  paint(map, holders, theme, config) {
    this.repaint = () => this.paint(map, holders, theme, config);
    const width = this.box.clientWidth / parseFloat(getComputedStyle(this.box).fontSize) - NAME_WIDTH;
    this.letters = Math.max(40, Math.floor((LINES_SHOWN * width) / LETTER_WIDTH));
    const { shown, few, hidden, rest } = this.choose(map);
    const wanted = shown.map(view => this.row(view, map, holders, theme, config));
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

  row(view, map, holders, theme, config) {
    const row = this.rows.get(view.sequence) ?? this.makeRow(view);
    const { parts } = row;
    row.element.className = `sequence ${view.status}`;
    parts.swatch.style.background = view.status === "finished" ? "" : theme.laneColour(view.lane);
    setText(parts.tokens, `${view.token_ids.length} tokens`);
    setText(parts.status, statusWords(view, map));
    parts.abort.hidden = view.status === "finished";
    this.paintChips(row, view, map, holders, theme);
    this.paintText(row, view);
    setText(parts.why, whyWords(view, map, config));
    return row.element;
  }

  makeRow(view) {
    const parts = {
      swatch: make("span", "swatch"),
      tokens: make("span", "count"),
      status: make("span", "status"),
      abort: make("button", "abort", { type: "button", title: `withdraw request ${view.request}`,
        "aria-label": `abort ${view.request}` }, "×"),
      chips: make("div", "chips"),
      text: make("p", "text", { title: "show all of it", role: "button", tabindex: "0" }),
      why: make("p", "why"),
    };
    const head = make("div", "head", {}, parts.swatch, make("b", "", {}, view.sequence), parts.tokens, parts.status,
      parts.abort);
    const element = make("article", "sequence", { "data-sequence": view.sequence }, head,
      make("div", "body", {}, parts.chips, parts.text, parts.why));
    const row = { element, parts, chips: "", text: "" };
    element.addEventListener("pointerenter", () => this.selection.hoverSequence(view.sequence));
    element.addEventListener("pointerleave", () => this.selection.hoverSequence(null));
    parts.abort.addEventListener("click", () => this.abort(view.request));
    parts.text.addEventListener("click", () => this.toggle(view.sequence));
    parts.text.addEventListener("keydown", event => { if (event.key === "Enter") this.toggle(view.sequence); });
    const blockOf = event => {
      const chip = event.target.closest("[data-block]");
      return chip ? Number(chip.dataset.block) : null;
    };
    parts.chips.addEventListener("pointerover", event => this.selection.hover(blockOf(event)));
    parts.chips.addEventListener("focusin", event => this.selection.hover(blockOf(event)));
    for (const leave of ["pointerleave", "focusout"]) parts.chips.addEventListener(leave, () => this.selection.hover(null));
    parts.chips.addEventListener("click", event => this.selection.pin(blockOf(event)));
    this.rows.set(view.sequence, row);
    return row;
  }

  toggle(name) {
    if (!this.open.delete(name)) this.open.add(name);
    this.repaint();
  }

  paintChips(row, view, map, holders, theme) {
    const looks = chipLooks(map, view, holders, theme);
    const signature = JSON.stringify(looks);
    if (signature !== row.chips) {
      row.chips = signature;
      row.parts.chips.replaceChildren(...looks.map(makeChip));
    }
    for (const chip of row.parts.chips.children) {
      chip.classList.toggle("selected", Number(chip.dataset.block) === this.selection.block);
    }
  }

  paintText(row, view) {
    const whole = this.open.has(view.sequence);
    const signature = `${view.texts.length} ${whole} ${view.status} ${this.letters}`;
    if (signature === row.text) return;
    row.text = signature;
    const generated = view.texts.slice(view.num_prompt_tokens);
    const newest = view.status === "finished" ? "" : generated.pop() ?? "";
    let prompt = view.texts.slice(0, view.num_prompt_tokens).join("");
    let answer = generated.join("");
    if (!whole) {
      const letters = view.status === "waiting" ? this.letters / LINES_SHOWN : this.letters;
      answer = tail(answer, letters - 24);
      prompt = tail(prompt, Math.max(12, Math.floor(letters - 2 - answer.length - newest.length)));
    }
    row.parts.text.replaceChildren(make("span", "prompt", {}, whole ? prompt : visible(prompt)),
      make("span", "answer", {}, whole ? answer : visible(answer)),
      make("mark", "", {}, whole ? newest : visible(newest)));
  }
}

/** In order of arrival, with the samples of a request side by side. */
function byRequest(views) {
  const groups = new Map();
  for (const view of views) groups.set(view.request, [...(groups.get(view.request) ?? []), view]);
  return [...groups.values()].flat();
}

function tail(text, length) {
  return text.length > length ? `…${text.slice(-length)}` : text;
}
