// A stop of the tour: its text beside the map, the blocks that it is about outlined, the panels that it needs open.

/** The card of a stop; `goOn()` when its reader has read it. */
function tourCard(stop, tour, track, goOn) {
  track.viewer.highlight(stop.blocks);
  for (const name of tour.panels) if (name in PANELS) track.viewer.panels.show(name);
  const button = makeButton("go on", goOn, { class: "primary" });
  return make("div", "card", { "data-kind": "tour" }, make("p", "", {}, tour.text), make("p", "acts", {}, button));
}
