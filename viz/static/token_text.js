// The text of one sequence, its end first, or all of it. Its tokens can be picked one by one: they become elements of
// their own while somebody points at them, walks through them, or looks at a block in which they lie.

class TokenText {
  constructor(viewer, sequence) {
    this.viewer = viewer;
    this.sequence = sequence;
    this.isOpen = false;
    this.isVisited = false; // pointed at, or walked through by keyboard
    this.walked = null; // position reached by keyboard
    this.shown = "";
    this.spans = []; // [{position, element}] while tokens are elements
    this.prompt = make("span", "prompt");
    this.answer = make("span", "answer");
    this.newest = make("mark");
    this.text = make("p", "text", { tabindex: "0", role: "group",
      "aria-label": `text of ${sequence}: left and right walk through its tokens, Enter picks one` },
      this.prompt, this.answer, this.newest);
    this.opener = make("button", "opener", { type: "button", "aria-expanded": "false" }, "all");
    this.box = make("div", "text-box", {}, this.text, this.opener);
    this.listen();
  }

  listen() {
    const { text, opener } = this;
    const { selection } = this.viewer;
    const visit = visited => () => {
      this.isVisited = visited;
      if (!visited) {
        this.walked = null;
        selection.hoverToken(null);
      }
      this.repaint();
    };
    text.addEventListener("pointerenter", visit(true));
    text.addEventListener("focus", visit(true));
    text.addEventListener("pointerleave", visit(false));
    text.addEventListener("blur", visit(false));
    text.addEventListener("pointerover", event => selection.hoverToken(...this.tokenOf(event)));
    text.addEventListener("click", event => {
      const [sequence, position] = this.tokenOf(event);
      if (sequence !== null) selection.pinToken(sequence, position);
    });
    text.addEventListener("keydown", event => this.onKey(event));
    opener.addEventListener("click", () => {
      this.isOpen = !this.isOpen;
      opener.setAttribute("aria-expanded", String(this.isOpen));
      setText(opener, this.isOpen ? "less" : "all");
      this.repaint();
    });
  }

  tokenOf(event) {
    const token = event.target.closest("[data-position]");
    return token ? [this.sequence, Number(token.dataset.position)] : [null, null];
  }

  onKey(event) {
    const { selection, map } = this.viewer;
    const last = (map.sequences[this.sequence]?.token_ids.length ?? 0) - 1;
    const from = this.walked ?? selection.token?.position ?? last + 1;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: this.first, End: last }[event.key];
    if (event.shiftKey || event.ctrlKey || event.altKey || event.metaKey) return;
    if (to !== undefined) {
      this.walked = Math.max(this.first, Math.min(last, to));
      selection.hoverToken(this.sequence, this.walked);
    } else if (event.key === "Enter" && this.walked !== null) {
      selection.pinToken(this.sequence, this.walked);
    } else {
      return;
    }
    event.preventDefault();
  }

  repaint() {
    this.viewer.tables.repaint();
  }

  /** Show the end of the text, `letters` long, or all of it. */
  paint(view, letters) {
    const { selection } = this.viewer;
    const isHeld = selection.block !== null && view.table.includes(selection.block);
    const isApart = this.isVisited || isHeld || selection.token?.sequence === this.sequence;
    const signature = [view.texts.length, this.isOpen, view.status, letters, isApart].join();
    if (signature !== this.shown) {
      this.shown = signature;
      this.fill(view, letters, isApart);
    }
    if (isApart) this.mark(view);
  }

  fill(view, letters, isApart) {
    const { texts, num_prompt_tokens: numPrompt, status } = view;
    const numAnswer = status === "finished" || texts.length === numPrompt ? texts.length : texts.length - 1;
    const room = status === "waiting" ? letters / LINES_SHOWN : letters;
    const newest = texts.slice(Math.max(numAnswer, numPrompt)).join("");
    const answer = this.isOpen ? numPrompt : firstWithin(texts, numPrompt, numAnswer, room - 24);
    const answerLength = texts.slice(answer, numAnswer).join("").length;
    const roomLeft = Math.max(12, room - 2 - answerLength - newest.length);
    this.first = this.isOpen ? 0 : firstWithin(texts, 0, numPrompt, roomLeft);
    this.opener.hidden = !this.isOpen && this.first === 0 && answer === numPrompt;
    this.spans = [];
    this.put(this.prompt, view, this.first, Math.min(numPrompt, texts.length), this.first > 0, isApart);
    this.put(this.answer, view, answer, numAnswer, answer > numPrompt, isApart);
    this.put(this.newest, view, Math.max(numAnswer, numPrompt), texts.length, false, isApart);
  }

  /** Put tokens into an element: as one text, or each by itself. */
  put(element, view, start, end, isCut, isApart) {
    const words = text => (this.isOpen ? text : visible(text));
    const texts = view.texts.slice(start, end);
    if (!isApart) {
      element.replaceChildren((isCut ? "…" : "") + words(texts.join("")));
      return;
    }
    const spans = texts.map((text, i) => {
      const span = make("span", "t", { "data-position": start + i }, words(text));
      this.spans.push({ position: start + i, element: span });
      return span;
    });
    element.replaceChildren(...(isCut ? ["…"] : []), ...spans);
  }

  /** Mark the token that is picked, and those that lie in the block looked at. */
  mark(view) {
    const { selection, map } = this.viewer;
    const { token, block } = selection;
    for (const { position, element } of this.spans) {
      const entry = view.table[Math.floor(position / map.block_size)];
      element.classList.toggle("picked", token?.sequence === this.sequence && token.position === position);
      element.classList.toggle("inside", block !== null && entry === block);
    }
  }
}

/** The first of the tokens from `start` to `end` so that the rest is at most `letters` long; the last always counts. */
function firstWithin(texts, start, end, letters) {
  let first = end;
  for (let length = 0; first > start; first--) {
    length += texts[first - 1].length;
    if (length > letters && first < end) break;
  }
  return first;
}
