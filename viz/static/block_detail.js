// What lies in the block that a viewer looks at: state, holders, fill, tokens; also as one sentence to be spoken.

function showDetail(box, map, block, holders, pinned) {
  if (block === null || block >= map.num_blocks) {
    box.replaceChildren(make("p", "hint", {}, "Point at a block, or walk with the arrow keys, to see who holds it and "
      + "which tokens lie in it. A click pins it."));
    return;
  }
  const described = describeBlock(map, block, holders);
  const rows = factsOf(map, described).flatMap(([name, value]) => [make("dt", "", {}, name), make("dd", "", {}, value)]);
  box.replaceChildren(
    make("h3", "", {}, `Block ${block}`, ...(pinned ? [make("small", "", {}, "pinned")] : [])),
    make("dl", "", {}, ...rows),
    tokensOf(map, described),
  );
}

function factsOf(map, described) {
  const { entries, state, refs, filled, planned, sealed } = described;
  const facts = [["state", stateWords(state, refs)]];
  if (entries.length > 0) {
    facts.push(["held by", entries.map(({ view, index }) => `${view.sequence} (logical ${index})`).join(", ")]);
  }
  if (state !== "blank") {
    facts.push(["filled", `${filled} of ${map.block_size}` + (planned ? `, ${planned} more in this step` : "")]);
    facts.push(["sealed", sealed ? `${map.hash[described.block].slice(0, 12)}…` : "not yet: found by hash once full"]);
  }
  return facts;
}

function stateWords(state, refs) {
  if (state === "used") return refs === 1 ? "used, 1 reference" : `used and shared, ${refs} references`;
  return state === "cached" ? "cached: free, its tokens can still be found" : "blank: free, holds nothing";
}

function tokensOf(map, described) {
  const line = make("p", "tokens");
  textsInBlock(map, described).forEach((text, slot) => {
    const look = slot < described.filled ? "token" : "token planned";
    line.append(make("span", look, { title: `slot ${slot}` }, visible(text) || "·"));
  });
  return line;
}

/** One block in words, for those who do not see the map. */
function blockInWords(map, block, holders) {
  const described = describeBlock(map, block, holders);
  const facts = factsOf(map, described).map(([name, value]) => (name === "state" ? value : `${name} ${value}`));
  return `Block ${block}: ${facts.join("; ")}.`;
}
