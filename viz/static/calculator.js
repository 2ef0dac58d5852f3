// The calculator tab: a model, a GPU and a length in; blocks and sequences out, with every formula filled in.

/** Published shapes: layers, KV heads, head size, context, parameters in billions. */
const MODELS = {
  "Qwen3 0.6B": [28, 8, 128, 40960, 0.6], "Llama 3.2 1B": [16, 8, 64, 131072, 1.24],
  "Llama 3.1 8B": [32, 8, 128, 131072, 8.03], "Mistral 7B": [32, 8, 128, 32768, 7.24],
  "Llama 2 7B": [32, 32, 128, 4096, 6.74], "OPT 13B": [40, 40, 128, 2048, 13.0],
  "Llama 3.1 70B": [80, 8, 128, 131072, 70.6],
};
const GPUS = {
  "T4 16 GB": 16, "RTX 4090 24 GB": 24, "L4 24 GB": 24, "A100 40 GB": 40, "A100 80 GB": 80, "H100 80 GB": 80,
  "H200 141 GB": 141,
};

/** name -> [label, first value, step] */
const INPUTS = {
  layers: ["layers", 32, 1], kvHeads: ["KV heads", 8, 1], headSize: ["head size", 128, 1],
  kvBytes: ["bytes of a cache element", 2, 1], parameters: ["parameters, billions", 8.03, 0.01],
  weightBytes: ["bytes of a weight", 2, 0.5], gpu: ["GPU memory, GiB", 80, 1],
  utilization: ["gpu_memory_utilization", 0.9, 0.05], blockSize: ["block size", 16, 1],
  context: ["max_model_len", 8192, 1], length: ["usual length, tokens", 700, 1], batch: ["batch", 256, 1],
};

class Calculator {
  constructor(box) {
    this.inputs = {};
    const labels = Object.entries(INPUTS).map(([name, [words, value, step]]) => {
      this.inputs[name] = make("input", "", { type: "number", name, value, step, min: "0" });
      return make("label", "", {}, words, this.inputs[name]);
    });
    const model = this.choice("model", MODELS, ([layers, kvHeads, headSize, context, parameters]) =>
      this.fill({ layers, kvHeads, headSize, context: Math.min(context, 8192), parameters }), "Llama 3.1 8B");
    const gpu = this.choice("GPU", GPUS, size => this.fill({ gpu: size }), "H100 80 GB");
    this.config = make("textarea", "", { rows: "3", "aria-label": "config.json", spellcheck: "false",
      placeholder: "or paste a model's config.json here" });
    this.config.addEventListener("input", () => this.readConfig());
    this.error = make("p", "error", { role: "alert", hidden: "" });
    this.sheet = make("tbody");
    this.bars = make("div", "memory-fit", { "aria-hidden": "true" });
    this.form = make("form", "calculator-form", {}, make("label", "", {}, "model", model),
      make("label", "", {}, "GPU", gpu), ...labels);
    this.form.addEventListener("input", () => this.paint());
    this.form.addEventListener("submit", event => event.preventDefault());
    box.replaceChildren(this.form, this.config, this.error,
      make("table", "sheet formulas", { "aria-live": "polite" }, this.sheet), this.bars);
    this.paint();
  }

  choice(name, options, chosen, first) {
    const select = make("select", "", { "aria-label": name },
      ...Object.keys(options).map(words => make("option", "", { value: words }, words)));
    select.value = first;
    select.addEventListener("change", () => {
      chosen(options[select.value]);
      this.paint();
    });
    return select;
  }

  fill(values) {
    for (const [name, value] of Object.entries(values)) this.inputs[name].value = value;
  }

  readConfig() {
    if (!this.config.value.trim()) {
      this.paint();
      return;
    }
    try {
      const { layers, kvHeads, headSize, context, parameters, weightBytes } = modelFromConfig(this.config.value);
      const billions = parameters === null ? {} : { parameters: Number((parameters / 1e9).toPrecision(4)) };
      const length = Math.min(context, this.inputs.length.valueAsNumber);
      this.fill({ layers, kvHeads, headSize, context, weightBytes, length, ...billions });
      this.paint();
    } catch (error) {
      this.complain(error);
    }
  }

  complain(error) {
    setText(this.error, error.message);
    this.error.hidden = false;
    this.sheet.replaceChildren();
    this.bars.replaceChildren();
  }

  paint() {
    const { parameters, weightBytes, gpu, ...rest } = Object.fromEntries(
      Object.entries(this.inputs).map(([name, input]) => [name, input.valueAsNumber]));
    try {
      const result = kvMemory({ ...rest, gpu: gpu * GIB, weights: parameters * 1e9 * weightBytes });
      this.error.hidden = true;
      this.sheet.replaceChildren(...result.lines.map(({ name, value, formula, filled }) =>
        make("tr", "", {}, make("th", "", { scope: "row" }, name), make("td", "", {}, make("b", "", {}, value)),
          make("td", "formula", {}, formula, make("br"), make("code", "", {}, filled)))));
      this.paintBars(result);
    } catch (error) {
      this.complain(error);
    }
  }

  /** How many sequences fit, as two bars of one length scale. */
  paintBars({ paged, contiguous }) {
    const most = Math.max(1, paged, contiguous);
    this.bars.replaceChildren(...Object.entries({ paged, contiguous }).map(([name, fits]) => {
      const bar = make("span", `fit ${name}`);
      bar.style.width = `${(100 * fits) / most}%`;
      return make("div", "fit-row", {}, make("span", "", {}, name), make("span", "track", {}, bar),
        make("b", "", {}, fits.toLocaleString("en")));
    }));
  }
}
