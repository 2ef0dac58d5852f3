// The block map as a table, for whoever cannot see or point at a canvas: block by block its state, references,
// holders and fill. Written only while it is open, a page at a time.

const SHEET_ROWS = 200;

class BlockSheet {
  /** `changed()` is called when another page is wanted. */
  constructor(changed) {
    this.page = 0;
    this.rows = make("tbody");
    this.where = make("span", "", { role: "status" });
    this.back = this.turner("previous blocks", -1, changed);
    this.on = this.turner("next blocks", 1, changed);
    const names = ["block", "state", "references", "holders", "filled"];
    const head = names.map(name => make("th", "", { scope: "col" }, name));
    this.box = make("div", "block-sheet", { hidden: "" },
      make("p", "", {}, this.back, " ", this.on, " ", this.where),
      make("div", "rows", { tabindex: "0", role: "region", "aria-label": "rows of the table of blocks" },
        make("table", "sheet", {}, make("caption", "unseen", {}, "physical blocks"),
          make("thead", "", {}, make("tr", "", {}, ...head)), this.rows)));
  }

  turner(words, by, changed) {
    return makeButton(words, () => {
      this.page += by;
      changed();
    });
  }

  /** The device's blocks, then those of the host pool. */
  paint(map, holders, numHostBlocks) {
    if (this.box.hidden) return;
    const total = map.num_blocks + numHostBlocks;
    this.page = Math.max(0, Math.min(Math.ceil(total / SHEET_ROWS) - 1, this.page));
    const start = this.page * SHEET_ROWS;
    const end = Math.min(total, start + SHEET_ROWS);
    setText(this.where, `rows ${start + 1} to ${end} of ${total}`);
    this.back.disabled = start === 0;
    this.on.disabled = end === total;
    while (this.rows.rows.length > end - start) this.rows.deleteRow(-1);
    for (let number = start; number < end; number++) {
      const row = this.rows.rows[number - start] ?? this.makeRow();
      const described = number < map.num_blocks ? describeBlock(map, number, holders)
        : describeHostBlock(map, number - map.num_blocks, holders);
      cellsOf(described, map.block_size).forEach((text, column) => setText(row.cells[column], text));
    }
  }

  makeRow() {
    const row = make("tr", "", {}, make("th", "", { scope: "row" }), ...Array.from({ length: 4 }, () => make("td")));
    this.rows.append(row);
    return row;
  }
}

function cellsOf({ block, state, refs, entries, filled, planned }, blockSize) {
  const holders = entries.map(({ view, index }) => `${view.sequence} (logical ${index})`).join(", ");
  const fill = `${filled} of ${blockSize}${planned ? `, ${planned} more in this step` : ""}`;
  return [String(block), state, String(refs), holders || "none", state === "blank" ? "nothing" : fill];
}
