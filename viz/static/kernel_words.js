// A KernelTraced event in words and numbers: which program it is, which row is which token and head, and what the
// running softmax does from tile to tile.

const ROWS_SHOWN = 16;

/** "step 9 · A.0 · layer 1 of 4 · KV head 0 of 2" */
function factsOfTrace(event, { model: { num_layers = "?", num_kv_heads = "?" } }) {
  return `step ${event.step} · ${event.sequence} · layer ${event.layer} of ${num_layers} · KV head ${event.kv_head} of `
    + `${num_kv_heads}`;
}

/** "triton kernel, tiles of 64 rows × 32 keys · grid 3 × 2" */
function launchWords(event) {
  const rows = event.block_m ? `${event.block_m} rows × ` : "";
  const tiles = event.tile ? `tiles of ${rows}${event.tile} keys` : "all keys at once";
  const window = event.sliding_window ? `, window of ${event.sliding_window}` : "";
  return `${event.kernel} kernel, ${tiles}${window} · grid ${event.grid.join(" × ")}`;
}

function programWords(event, walk) {
  const { first_position: first, num_queries: queries } = walk;
  const heads = event.group === 1 ? "1 head" : `${event.group} heads`;
  const whose = queries === 1 ? `the token at position ${first}`
    : `the tokens at positions ${first}–${first + queries - 1}`;
  const padding = event.block_m ? `, ${event.block_m - queries * event.group} more are padding` : "";
  return `Program (${walk.program.join(", ")}) serves ${whose} of ${event.sequence}, for the ${heads} that share KV `
    + `head ${event.kv_head}: ${queries * event.group} rows${padding}.`;
}

/** Row m is token m // group and head m % group of the group. */
function rowsOf(event, walk) {
  const { group, kv_head: head } = event;
  const number = walk.num_queries * group;
  const rows = Array.from({ length: Math.min(ROWS_SHOWN, number) }, (_, row) =>
    tableRow("td", [row, walk.first_position + Math.floor(row / group), head * group + (row % group)]));
  const rest = number - rows.length;
  return [
    make("summary", "", {}, `which row is which token and head: row m is token m // ${group}, head m % ${group}`),
    make("table", "sheet", {}, tableRow("th", ["row", "position", "query head"]), ...rows),
    ...(rest > 0 ? [make("p", "hint", {}, `and ${count(rest, "row")} more`)] : []),
  ];
}

/** The running softmax of the program's last token, a line for each head: before, the factor, and after the tile. */
function softmaxRows(event, walk, number) {
  const last = walk.first_position + walk.num_queries - 1;
  const caption = make("caption", "", {}, `Running softmax of the token at position ${last}. A larger maximum m′ `
    + "scales the old sum down by exp(m − m′).");
  const tile = walk.tiles[number] ?? walk.tiles.at(-1);
  const before = number === WHOLE_WALK ? tile : walk.tiles[number - 1];
  const titles = number === WHOLE_WALK ? ["head", "maximum in the end", "sum in the end"]
    : ["head", "running max m → m′", "exp(m − m′)", "old sum × factor + this tile's", "running sum"];
  const lines = Array.from({ length: event.group }, (_, i) => {
    const head = String(event.kv_head * event.group + i);
    if (number === WHOLE_WALK) return [head, decimals(tile.running_max[i]), decimals(tile.running_sum[i])];
    const [max, sum] = [tile.running_max[i], tile.running_sum[i]];
    const [oldMax, oldSum] = [before?.running_max[i] ?? null, before?.running_sum[i] ?? 0];
    const factor = max === null ? 1 : oldMax === null ? 0 : Math.exp(oldMax - max);
    return [head, `${oldMax === null ? "−∞" : decimals(oldMax)} → ${decimals(max)}`, decimals(factor),
      `${decimals(oldSum)} × ${decimals(factor)} + ${decimals(sum - oldSum * factor)}`, decimals(sum)];
  });
  return [caption, tableRow("th", titles), ...lines.map(line => tableRow("td", line))];
}

function tableRow(tag, values) {
  return make("tr", "", {}, ...values.map(value => make(tag, "", {}, String(value))));
}

function decimals(number) {
  if (number === null) return "no key yet";
  return number !== 0 && Math.abs(number) < 0.001 ? number.toExponential(1) : number.toFixed(3);
}

/** The blocks of a walk in the order in which they are come to. */
function walkOrder(walk, name) {
  return walk.tiles.flatMap(tile => tile[name]).filter((block, i, all) => block !== all[i - 1]);
}

function blocksOfWalk(walk) {
  return [...new Set(walk.tiles.flatMap(tile => [...tile.key_blocks, ...tile.value_blocks]))];
}
