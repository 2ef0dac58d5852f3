// What an exported file does when it is opened: it reads the recording that lies in it, and shows it.

async function showExported() {
  const root = document.querySelector(".pagelens");
  const parts = partsOf(root);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => document.body.classList.toggle("dark", dark.matches);
  dark.addEventListener("change", follow);
  follow();
  const viewer = new Viewer(parts.viewer);
  const { seq, block } = momentOfLink(location.hash);
  let opened = false;
  try {
    await readRecording(await bytesIn(document.getElementById("recording")), history => {
      if (!opened) viewer.open(history);
      opened = true;
      viewer.redraw();
    });
    setText(parts.progress, `${(viewer.history.newest + 1).toLocaleString("en")} events`);
    viewer.goTo(seq ?? fullestMoment(viewer.history));
    if (block !== null) viewer.selection.pin(block);
  } catch (error) {
    setText(parts.progress, error.message);
    parts.progress.classList.add("lost");
  }
}

/** The event after which most slots were held: there is most to see. */
function fullestMoment({ steps, newest }) {
  const held = step => step.memory?.held ?? 0;
  const fullest = steps.steps.reduce((best, step) => (held(step) > held(best) ? step : best), {});
  return fullest.last ?? newest;
}

showExported();
