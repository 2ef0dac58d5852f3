// The last tab: what this engine is, from the header of its log.

function showAbout(box, header) {
  const kernel = header.kernel;
  const runsOn = kernelWords(kernel);
  box.replaceChildren(
    make("h2", "", {}, "This engine"),
    factTable([
      ["model", header.model.name], ["architecture", header.model.architecture], ["layers", header.model.num_layers],
      ["KV heads", header.model.num_kv_heads], ["head size", header.model.head_dim],
      ["kernel", runsOn], ["why this kernel", kernel.why],
      ["pool", `${header.num_blocks} blocks of ${header.block_size} tokens`], ["run", header.run],
    ]),
    new ModelForm(header).root,
    make("h2", "", {}, "Its configuration"),
    factTable(Object.entries(header.config)),
    make("h2", "", {}, "Its recording"),
    make("p", "", {}, "The events that are held now, as a file for ", make("code", "", {}, "pagelens inspect"), ": ",
      make("a", "", { href: new URL("pagelens/recording", document.baseURI), download: "" }, "download .kvtrace")),
  );
}

/** The model's name, without the folders before it. */
function modelName(header) {
  return header.model.name?.split(/[\\/]/).pop() ?? "this model";
}

/** "Triton, interpreted", "Triton", "torch". */
function kernelWords(kernel) {
  const name = kernel.name === "triton" ? "Triton" : kernel.name ?? "unknown kernel";
  return kernel.interpreted ? `${name}, interpreted` : name;
}

function factTable(rows) {
  const known = rows.filter(([, value]) => value !== undefined && value !== "");
  return make("table", "sheet", {}, ...known.map(([name, value]) =>
    make("tr", "", {}, make("th", "", { scope: "row" }, name), make("td", "", {}, wordsOf(value)))));
}

function wordsOf(value) {
  if (value === null) return "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
