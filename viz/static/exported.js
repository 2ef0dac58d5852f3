// What an exported file does when it is opened: it reads the recording that lies in it, and shows it.

async function showExported() {
  const root = document.querySelector(".pagelens");
  const parts = partsOf(root);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => document.body.classList.toggle("dark", dark.matches);
  dark.addEventListener("change", follow);
  follow();
  const viewer = new Viewer(parts.viewer);
  const moment = new URLSearchParams(location.hash.slice(1));
  let opened = false;
  try {
    const packed = Uint8Array.from(atob(document.getElementById("recording").textContent.trim()), c => c.charCodeAt(0));
    await readRecording(await unpacked(new Blob([packed])), history => {
      if (!opened) viewer.open(history);
      opened = true;
      viewer.redraw();
    });
    setText(parts.progress, `${(viewer.history.newest + 1).toLocaleString("en")} events`);
    viewer.goTo(moment.has("seq") ? Number(moment.get("seq")) : viewer.history.newest);
    if (moment.has("block")) viewer.selection.pin(Number(moment.get("block")));
  } catch (error) {
    setText(parts.progress, error.message);
    parts.progress.classList.add("lost");
  }
}

showExported();
