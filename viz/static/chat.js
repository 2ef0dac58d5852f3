// The chat tab: a conversation with whatever model is loaded. Its answers arrive in the same event stream as everything
// else, and each turn says how many tokens of its prompt came from the prefix cache.

/** One question with its answer. */
class ChatTurn {
  constructor(question) {
    this.question = question;
    this.sequence = null; // the name of the answer's sequence, once the server has told it
    this.answer = "";
    this.tokens = []; // prompt and answer, for the next turn
    this.cached = null; // tokens of the prompt that came from the cache
    this.over = false;
    this.parts = {
      answer: make("p", "said"),
      facts: make("span"),
      link: makeButton("show its blocks", () => showInLive(this.sequence), { class: "link", hidden: "" }),
    };
    this.root = make("article", "turn", {},
      make("p", "asked", { "aria-label": "you" }, question),
      this.parts.answer, make("p", "hint", {}, this.parts.facts, " ", this.parts.link));
  }

  /** Take in what the map says of the answer by now. */
  follow(map, header) {
    const view = map.sequences[this.sequence];
    if (this.over) return;
    if (!view) {
      if (this.cached !== null || this.tokens.length > 0) this.end("its end was not seen: it is long past");
      return;
    }
    this.answer = view.texts.slice(view.num_prompt_tokens).join("");
    this.tokens = view.token_ids;
    if (this.cached === null && view.status !== "waiting") this.cached = view.num_cached_tokens;
    this.over = view.status === "finished";
    if (this.over) this.tokens = [...view.token_ids];
    setText(this.parts.answer, this.answer);
    this.parts.link.hidden = false;
    const cache = cacheWords(this.cached, view.num_prompt_tokens, header.block_size);
    const halted = !this.over && map.halted_after ? "the engine is halted in the Live tab, and answers when it runs on" : "";
    setText(this.parts.facts, [cache, statusWords(view, map), halted].filter(Boolean).join(" · "));
  }

  /** The answer never came, or is lost with its run. */
  end(why) {
    this.over = true;
    setText(this.parts.facts, why);
  }
}

class Chat {
  constructor(element) {
    this.root = element.querySelector(".pagelens");
    this.turns = [];
    this.run = null;
    this.log = make("div", "chat-log",
      { role: "log", "aria-live": "polite", "aria-label": "conversation", tabindex: "0" });
    this.note = make("p", "hint");
    this.error = make("p", "error", { role: "alert", hidden: "" });
    this.input = make("textarea", "", {
      rows: "2", "aria-label": "message", placeholder: "Ask something. Enter sends, Shift+Enter begins a new line.",
    });
    const number = (name, attributes) => make("input", "", { type: "number", "aria-label": name, ...attributes });
    this.maxTokens = number("most tokens of an answer", { value: "128", min: "1" });
    this.temperature = number("temperature of answers", { value: "0.7", min: "0", step: "0.1" });
    this.send = make("button", "primary", { type: "submit" }, "send");
    this.stop = makeButton("stop", () => this.abort());
    this.fresh = makeButton("new chat", () => this.begin());
    const form = make("form", "chat-form", { novalidate: "" }, this.input,
      make("span", "buttons", {},
        make("label", "", {}, "max tokens ", this.maxTokens), make("label", "", {}, "temperature ", this.temperature),
        this.send, this.stop, this.fresh),
      this.error);
    this.root.append(this.note, this.log, form);
    form.addEventListener("submit", event => {
      event.preventDefault();
      this.ask();
    });
    this.input.addEventListener("keydown", event => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.ask();
    });
    this.paint();
  }

  get last() { return this.turns.at(-1); }
  get answering() { return this.last !== undefined && !this.last.over; }

  /** Ask what is in the box, with everything said so far. */
  async ask() {
    const question = this.input.value.trim();
    if (!question || this.answering) return;
    const { turns } = this;
    const former = this.last?.tokens ?? [];
    const messages = turns.flatMap(turn =>
      [{ role: "user", content: turn.question }, { role: "assistant", content: turn.answer }]);
    const turn = new ChatTurn(question);
    turns.push(turn);
    this.log.append(turn.root);
    this.input.value = "";
    this.error.hidden = true;
    this.paint();
    try {
      const { requests: [request] } = await sendCommand({
        command: "chat", messages: [...messages, { role: "user", content: question }], former_token_ids: former,
        max_tokens: numberIn(this.maxTokens, "max tokens"), temperature: numberIn(this.temperature, "temperature"),
      });
      turn.request = request;
      turn.sequence = `${request}.0`;
      if (this.last !== turn) await sendCommand({ command: "abort", request }); // a new chat was begun meanwhile
    } catch (problem) {
      this.takeBack(turn, problem.message);
    }
    this.paint();
  }

  /** A question that was refused goes back into the box. */
  takeBack(turn, message) {
    turn.end("");
    if (this.last !== turn) return;
    this.turns.pop();
    turn.root.remove();
    if (!this.input.value) this.input.value = turn.question;
    this.fail(message);
  }

  async abort() {
    try {
      if (this.last?.request) await sendCommand({ command: "abort", request: this.last.request });
    } catch (problem) {
      if (this.answering) this.fail(problem.message); // else it had just finished
    }
  }

  /** Forget the conversation; an answer that is being given is stopped. */
  begin() {
    if (this.answering) this.abort();
    this.turns = [];
    this.log.replaceChildren();
    this.error.hidden = true;
    this.paint();
    this.input.focus();
  }

  fail(message) {
    setText(this.error, message);
    this.error.hidden = false;
  }

  // what the LiveSource tells

  onRun({ header }) {
    if (this.run !== null && this.run !== header.run) {
      if (this.answering) this.last.end("lost: the engine was restarted, or another model loaded");
      for (const turn of this.turns) {
        turn.tokens = []; // they say nothing to another model
        turn.parts.link.hidden = true;
      }
    }
    this.run = header.run;
    const name = modelName(header);
    setText(this.note, header.model.chat_template ? `${name} answers in turns, as its chat template says.${sizeWords(header)}`
      : `${name} has no chat template: it does not know questions and answers, and continues what you write.`);
    this.onEvents();
  }

  onEvents() {
    this.follow(); // now: a hidden tab paints nothing, and the map soon forgets what has finished
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  follow() {
    const history = Pagelens.source?.history;
    if (history && this.answering) this.last.follow(history.map, history.header);
  }

  paint() {
    const { log } = this;
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
    this.follow();
    this.send.disabled = this.answering;
    this.stop.disabled = !this.answering || !this.last.request;
    this.fresh.disabled = this.turns.length === 0;
    log.setAttribute("aria-busy", String(this.answering)); // a reader hears the whole answer, not its pieces
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
}

/** "48 of 61 prompt tokens came from the cache (3 blocks)". */
function cacheWords(cached, tokens, blockSize) {
  if (cached === null) return `${count(tokens, "prompt token")}`;
  const blocks = count(Math.floor(cached / blockSize), "block");
  return `${cached} of ${count(tokens, "prompt token")} came from the cache (${blocks})`;
}

/** A warning that a small model talks nonsense. */
function sizeWords({ model }) {
  const millions = (model.num_parameters ?? Infinity) / 1e6;
  return millions < 100 ? ` It has ${millions.toFixed(1)} million parameters: expect the form of an answer, not its sense.` : "";
}

/** Go to the first tab, where the viewer looks at a sequence. */
function showInLive(sequence) {
  document.querySelector("[role=tab]")?.click();
  document.dispatchEvent(new CustomEvent("pagelens:show", { detail: { sequence } }));
}

Pagelens.startChat = (element, version) => { Pagelens.chat = Pagelens.follow(version, new Chat(element)); };
