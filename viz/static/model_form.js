// The form that loads another model: what the server says of it while it loads, and why it could not.

const MILLISECONDS_BETWEEN_LOOKS = 400;

class ModelForm {
  /** `header` is that of the engine that serves now, whose model and pool are the form's first suggestion. */
  constructor({ config, run }) {
    this.run = run;
    const field = (name, label, attributes) => make("label", "", {}, label, " ",
      make("input", "", { name, autocomplete: "off", spellcheck: "false", ...attributes }));
    const kernel = make("select", "", { name: "kernel" },
      ...["auto", "triton", "numba", "torch"].map(name => make("option", "", { value: name }, name)));
    kernel.value = config.kernel ?? "auto";
    this.words = make("p", "hint", { role: "status" });
    this.error = make("p", "error", { role: "alert", hidden: "" });
    this.bar = make("progress", "", { max: "1", value: "0", "aria-label": "loading", hidden: "" });
    this.button = make("button", "primary", { type: "submit" }, "load");
    this.root = make("form", "model-form", { novalidate: "" }, make("h2", "", {}, "Another model"),
      field("model", "folder or hub id", { value: config.model ?? "", placeholder: "empty: the embedded model" }),
      make("label", "", {}, "kernel ", kernel),
      field("block_size", "tokens per block", { type: "number", min: "1", value: config.block_size }),
      field("num_gpu_blocks_override", "blocks",
        { type: "number", min: "1", value: config.num_gpu_blocks_override ?? "" }),
      field("max_model_len", "max model len", { type: "number", min: "1", placeholder: "the model's" }),
      this.button, this.bar, this.words, this.error);
    this.root.addEventListener("submit", event => {
      event.preventDefault();
      this.load();
    });
    setText(this.words, "The model that is there serves on until the new one is ready; then a new run begins for all.");
    this.look();
  }

  async load() {
    const { model, kernel, block_size, num_gpu_blocks_override, max_model_len } = this.root.elements;
    const orNull = input => (input.value.trim() === "" ? null : numberIn(input, input.name));
    this.error.hidden = true;
    try {
      await sendCommand({
        command: "load_model", model: model.value.trim(), kernel: kernel.value,
        block_size: numberIn(block_size, "tokens per block"),
        num_gpu_blocks_override: orNull(num_gpu_blocks_override), max_model_len: orNull(max_model_len),
      });
      this.asked = true;
      this.look();
    } catch (problem) {
      this.fail(problem.message);
    }
  }

  /** Show how far the load is that is under way, if one is, until it is over. */
  async look() {
    const state = await fetch(new URL("loading", OWN_ROUTES)).then(response => response.json()).catch(() => null);
    const underWay = Boolean(state) && !state.error && !state.run;
    this.bar.hidden = !underWay;
    this.button.disabled = underWay;
    if (underWay) {
      this.asked = true;
      this.bar.value = state.share;
      setText(this.words, `${state.model || "the embedded model"}: ${state.stage}, ${Math.round(100 * state.share)} %`);
      setTimeout(() => this.look(), MILLISECONDS_BETWEEN_LOOKS);
    } else if (state?.run === this.run) {
      setText(this.words, `${state.model || "the embedded model"} has been loaded, and this run begun.`);
    } else if (this.asked && state?.error) {
      setText(this.words, "The model that was there serves on.");
      this.fail(state.error);
    }
  }

  fail(message) {
    setText(this.error, message);
    this.error.hidden = false;
  }
}
