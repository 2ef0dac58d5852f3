// How much memory keys and values take, and how many sequences that holds: the arithmetic of the calculator.

const GIB = 2 ** 30;

/**
 * From a model's config.json: {layers, heads, kvHeads, headSize, context, parameters, weightBytes}; `parameters` is
 * counted for a Llama-like model and null where the config does not tell. Throws with a message for people.
 */
function modelFromConfig(text) {
  let config;
  try {
    config = JSON.parse(text);
  } catch (error) {
    throw new Error(`this is no JSON (${error.message}): paste the whole config.json of a model`);
  }
  config = config?.text_config ?? config;
  const first = (...names) => names.map(name => config?.[name]).find(Number.isFinite);
  const layers = first("num_hidden_layers", "n_layer", "num_layers");
  const heads = first("num_attention_heads", "n_head", "num_heads");
  const hidden = first("hidden_size", "n_embd", "d_model");
  const missing = Object.entries({ num_hidden_layers: layers, num_attention_heads: heads, hidden_size: hidden })
    .filter(([, value]) => value === undefined).map(([name]) => name);
  if (missing.length > 0) {
    throw new Error(`the config has no ${missing.join(", no ")}: is it the config.json of a decoder?`);
  }
  const kvHeads = first("num_key_value_heads") ?? heads;
  const headSize = first("head_dim") ?? hidden / heads;
  return {
    layers, heads, kvHeads, headSize,
    context: first("max_position_embeddings", "n_positions") ?? 2048,
    parameters: parametersOf(config, { layers, heads, kvHeads, headSize, hidden }),
    weightBytes: /32/.test(config.dtype ?? config.torch_dtype ?? "") ? 4 : 2,
  };
}

function parametersOf(config, { layers, heads, kvHeads, headSize, hidden }) {
  const { vocab_size: vocabulary, intermediate_size: inner, tie_word_embeddings: tied = false } = config;
  const hasExperts = config.num_experts || config.num_local_experts;
  if (!Number.isFinite(vocabulary) || !Number.isFinite(inner) || hasExperts) return null;
  const attention = 2 * hidden * headSize * (heads + kvHeads);
  return vocabulary * hidden * (tied ? 1 : 2) + layers * (attention + 3 * hidden * inner + 2 * hidden) + hidden;
}

/**
 * Everything the calculator shows, each line {name, formula, value, unit}, and the numbers themselves. `input`: layers,
 * kvHeads, headSize, kvBytes (of an element), weights (bytes), gpu (bytes), utilization, blockSize, context (most
 * tokens of a sequence), length (tokens of a usual one), batch (sequences wanted). Throws with a message for people.
 */
function kvMemory(input) {
  for (const [name, value] of Object.entries(input)) {
    const least = name === "weights" ? 0 : Number.MIN_VALUE;
    if (!(value >= least && Number.isFinite(value))) throw new Error(`${name} is ${value}: type a number above 0`);
  }
  const { layers, kvHeads, headSize, kvBytes, weights, gpu, utilization, blockSize, context, length, batch } = input;
  if (utilization > 1) throw new Error(`gpu_memory_utilization is ${utilization}, allowed is above 0 to 1`);
  if (length > context) {
    throw new Error(`a usual length of ${length} is more than the context of ${context}: make it shorter`);
  }
  const perToken = 2 * layers * kvHeads * headSize * kvBytes;
  const perBlock = perToken * blockSize;
  const forCache = Math.max(0, gpu * utilization - weights);
  const blocks = Math.floor(forCache / perBlock);
  const slots = blocks * blockSize;
  const blocksEach = Math.ceil(length / blockSize);
  const paged = Math.floor(blocks / blocksEach);
  const contiguous = Math.floor(slots / context);
  const needed = batch * blocksEach;
  const n = value => value.toLocaleString("en");
  return {
    perToken, perBlock, forCache, blocks, slots, blocksEach, paged, contiguous, needed,
    lines: [
      { name: "KV bytes per token", value: bytesInWords(perToken),
        formula: "2 (K and V) · layers · KV heads · head size · bytes of an element",
        filled: `2 · ${layers} · ${kvHeads} · ${headSize} · ${kvBytes} = ${n(perToken)}` },
      { name: "bytes per block", value: bytesInWords(perBlock),
        formula: "block size · KV bytes per token", filled: `${blockSize} · ${n(perToken)} = ${n(perBlock)}` },
      { name: "memory for the cache", value: bytesInWords(forCache),
        formula: "gpu_memory_utilization · GPU memory − weights",
        filled: `${utilization} · ${gib(gpu)} − ${gib(weights)} = ${gib(forCache)} GiB (activations take some of it)` },
      { name: "blocks", value: n(blocks), formula: "memory for the cache ÷ bytes per block, rounded down",
        filled: `${n(Math.floor(forCache))} ÷ ${n(perBlock)} → ${n(blocks)} blocks = ${n(slots)} slots` },
      { name: "sequences of the usual length, paged", value: n(paged), formula: "blocks ÷ ⌈length ÷ block size⌉",
        filled: `${n(blocks)} ÷ ⌈${n(length)} ÷ ${blockSize}⌉ = ${n(blocks)} ÷ ${n(blocksEach)} → ${n(paged)}` },
      { name: "sequences, contiguous", value: n(contiguous),
        formula: "slots ÷ context, since each reserves the longest it may get",
        filled: `${n(slots)} ÷ ${n(context)} → ${n(contiguous)}` },
      { name: `a batch of ${n(batch)}`, value: needed <= blocks ? "fits" : "does not fit",
        formula: "batch · ⌈length ÷ block size⌉ ≤ blocks", filled: `${n(batch)} · ${n(blocksEach)} = ${n(needed)} `
          + `${needed <= blocks ? "≤" : ">"} ${n(blocks)}` },
    ],
  };
}

function bytesInWords(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 2 ** (10 * power);
  return `${Number.isInteger(value) ? value : value.toFixed(value < 10 ? 2 : 1)} ${units[power]}`;
}

function gib(bytes) {
  return (bytes / GIB).toFixed(2);
}

if (typeof module !== "undefined") module.exports = { kvMemory, modelFromConfig };
