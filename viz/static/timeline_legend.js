// The timeline's legend: its own spans, drawn by the same function, each with what it means.

const SAMPLE = 34; // px, of the span drawn beside its words
const SAMPLE_STEPS = 4;

const TIMELINE_LEGEND = [
  ["prefill", "prefill, with its tokens"], ["recompute", "computed again"], ["decode", "decode, a token a step"],
  ["waiting", "waiting"], ["preempted", "preempted or swapped out"], ["finished", "finished"],
];

function showTimelineLegend(box, theme) {
  box.replaceChildren(...TIMELINE_LEGEND.map(([kind, words]) => {
    const canvas = make("canvas", "", { "aria-hidden": "true" });
    const context = sizeCanvas(canvas, SAMPLE, ROW_HEIGHT, devicePixelRatio);
    const scale = Object.assign(new StepScale(0, SAMPLE_STEPS, SAMPLE), { left: 0 });
    const span = { kind, from: 0, to: SAMPLE_STEPS - 1, at: SAMPLE_STEPS / 2, tokens: "" };
    drawSpan(context, span, ROW_HEIGHT / 2, scale, SAMPLE_STEPS, theme.laneColour(0), theme);
    return make("li", "", {}, canvas, words);
  }));
}
