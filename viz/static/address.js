// Where a token's key and value lie: from its position to a byte of the tensor kv[block, layer, K/V, head, slot, :].
//
//     position 74   logical block 74 // 16 = 4   table[4] = block 25   slot 74 % 16 = 10
//     element  ((((25 · layers + layer) · 2 + K/V) · heads + head) · 16 + slot) · head size      byte = element · bytes

/** How a position is reached: {position, logical, slot, entry}; `entry` of the table is undefined without a block. */
function slotAddress(view, position, blockSize) {
  const logical = Math.floor(position / blockSize);
  return { position, logical, slot: position % blockSize, entry: view.table[logical] };
}

/** Bytes of one number in the tensor; null if the run has no tensor. */
function elementBytes({ num_layers, num_kv_heads, head_dim, bytes_per_token }) {
  const elements = 2 * num_layers * num_kv_heads * head_dim;
  return elements > 0 && bytes_per_token > 0 ? bytes_per_token / elements : null;
}

/** Offset in elements of the first number of a slot's key (kv 0) or value (kv 1). */
function elementOffset(block, slot, { layer, kv, head }, model, blockSize) {
  const { num_layers, num_kv_heads, head_dim } = model;
  return ((((block * num_layers + layer) * 2 + kv) * num_kv_heads + head) * blockSize + slot) * head_dim;
}

/** The block that held a logical block of a sequence until it ended or was preempted; undefined if that is not held. */
function blockGivenBack(view, logical, { history, map }) {
  if (view.status !== "finished" && view.status !== "preempted") return undefined;
  const { steps } = history.steps;
  const last = steps[history.steps.indexOf(view.last_event)]?.last ?? -1;
  return history.slice(view.last_event + 1, Math.min(map.seq, last) + 1).find(e => e.kind === "BlockReleased"
    && e.cause === view.last_event && e.index === logical && e.sequence === view.sequence)?.block;
}

class Address {
  /** The arithmetic of the token looked at, with a choice of layer, key or value, and head that stays. */
  constructor(viewer) {
    this.viewer = viewer;
    this.choice = { layer: 0, kv: 0, head: 0 };
    this.box = make("div", "address", { role: "group", "aria-label": "address of the token" });
    this.shown = "";
  }

  paint() {
    const { map, selection, header } = this.viewer;
    const { token } = selection;
    const view = token && map.sequences[token.sequence];
    this.box.hidden = !view;
    if (!view) {
      this.shown = "";
      this.box.replaceChildren();
      return;
    }
    const at = slotAddress(view, token.position, map.block_size);
    const end = view.num_computed_tokens + (map.scheduled[view.sequence] ?? 0);
    const lost = at.entry === undefined ? blockGivenBack(view, at.logical, this.viewer) : undefined;
    const signature = JSON.stringify([token, at, header.run, view.status, view.num_computed_tokens > token.position,
      end > token.position, lost, map.state[lost], map.last_touched[lost]]);
    if (signature === this.shown) return;
    this.shown = signature;
    const text = visible(view.texts[token.position] ?? "") || "·";
    this.box.replaceChildren(
      make("h3", "", {}, `Token ${token.position} of ${view.sequence} `, make("span", "token", {}, text)),
      ...this.steps(view, at, end, lost).map(step => make("p", "step", {}, ...[step].flat())));
  }

  /** Line by line, from the position to the byte or to why there is none. */
  steps(view, at, end, lost) {
    const { map } = this.viewer;
    const { position, logical, slot, entry } = at;
    const size = map.block_size;
    const lines = [`logical block = ${position} // ${size} = ${logical}, slot = ${position} % ${size} = ${slot}`];
    if (entry === undefined) return [...lines, this.whyNowhere(view, at, lost)];
    if (entry < 0) {
      return [...lines, `table[${logical}] = block ${-1 - entry} of the host pool: ${view.sequence} is swapped out, `
        + "and its keys and values come back to some block when it runs again."];
    }
    const when = position < view.num_computed_tokens ? "its key and value lie there"
      : position < end ? "this step writes its key and value there"
        : "its key and value are written there in a later step";
    return [...lines, `table[${logical}] = block ${entry}: ${when}.`, ...this.inTensor(entry, slot)];
  }

  /** Why no table entry leads from a position to a block. */
  whyNowhere(view, { logical, slot }, block) {
    if (view.status !== "finished" && view.status !== "preempted") {
      return `${view.sequence}'s table has no entry ${logical} yet: its block is taken in the step that computes the `
        + "token.";
    }
    const { map, holders } = this.viewer;
    const gone = view.status === "finished" ? `${view.sequence} has finished and gave its blocks back.`
      : `${view.sequence} was preempted and gave its blocks back; its keys and values are computed again.`;
    if (block === undefined) return `${gone} The block that held this token may be someone else's now.`;
    const now = map.state[block] === "used" ? holders.get(block).map(entry => entry.view.sequence) : [];
    const state = now.length ? `which ${now.join(", ")} ${now.length > 1 ? "hold" : "holds"} now`
      : `which is ${map.state[block]} now`;
    return `${gone} This token lay in block ${block}, slot ${slot}, ${state}: it may be someone else's at any time.`;
  }

  /** The part of the way that the tensor adds, with its pickers. */
  inTensor(block, slot) {
    const { model } = this.viewer.header;
    const bytes = elementBytes(model);
    if (bytes === null) return ["This run has no tensor: no model computes its keys and values."];
    const element = make("output", "", { "aria-label": "offset in elements" });
    const byte = make("output", "byte", { "aria-label": "byte offset" });
    const fill = () => {
      const { layer, kv, head } = this.choice;
      const { num_layers, num_kv_heads, head_dim } = model;
      const size = this.viewer.map.block_size;
      const offset = elementOffset(block, slot, this.choice, model, size);
      const words = value => value.toLocaleString("en");
      setText(element, `((((${block}·${num_layers} + ${layer})·2 + ${kv})·${num_kv_heads} + ${head})·${size} + ${slot})`
        + `·${head_dim} = element ${words(offset)}`);
      setText(byte, `${words(offset)} · ${bytes} bytes = byte ${words(offset * bytes)}`);
      byte.dataset.byte = offset * bytes;
    };
    const pick = (name, label, options) => {
      const select = make("select", "", { "aria-label": label },
        ...options.map((words, i) => make("option", "", { value: i }, words)));
      this.choice[name] = Math.min(this.choice[name], options.length - 1);
      select.value = this.choice[name];
      select.addEventListener("change", () => {
        this.choice[name] = Number(select.value);
        fill();
      });
      return select;
    };
    const numbered = (noun, number) => Array.from({ length: number }, (_, i) => `${noun} ${i}`);
    const place = [`kv[block ${block}, `, pick("layer", "layer", numbered("layer", model.num_layers)), " ",
      pick("kv", "key or value", ["K: 0", "V: 1"]), " ", pick("head", "head", numbered("KV head", model.num_kv_heads)),
      `, slot ${slot}, 0…${model.head_dim - 1}]`];
    fill();
    return [place, element, byte];
  }
}

