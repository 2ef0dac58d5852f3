// Recordings in a page of the docs: each is a box with a packed recording in it, shown when it comes into sight.

function playWhenSeen(box) {
  const seen = new IntersectionObserver(entries => {
    if (!entries.some(entry => entry.isIntersecting)) return;
    seen.disconnect();
    playRecording(box);
  }, { rootMargin: "200px" });
  seen.observe(box);
}

async function playRecording(box) {
  const viewer = new Viewer(box.querySelector(".viewer"));
  const history = await readRecording(await bytesIn(box.querySelector("script")), () => {});
  const first = box.dataset.at ? history.next(box.dataset.at, -1) : undefined;
  viewer.open(history, first ?? history.newest);
}

/** The site's colour scheme is an attribute of its own; the viewer's is a class. */
function followColourScheme() {
  const follow = () => document.body.classList.toggle("dark", document.body.dataset.mdColorScheme === "slate");
  new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  follow();
}

followColourScheme();
for (const box of document.querySelectorAll(".pagelens.replay")) playWhenSeen(box);
