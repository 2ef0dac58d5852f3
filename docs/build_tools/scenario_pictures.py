"""Take a picture of each scenario at its telling moment, from real runs in a real browser, into docs/images/scenarios/.

    python docs/build_tools/scenario_pictures.py [NAME ...]

It is no part of the build: a build should not depend on a browser.
"""

import os
import shutil
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")

import uvicorn
from playwright.sync_api import Page, sync_playwright

from pagelens.engine import Engine, EngineConfig, EngineLoop
from pagelens.viz.app import PageServer, build_app
from pagelens.viz.scenario_file import SCENARIOS

IMAGES = Path(__file__).parents[1] / "images" / "scenarios"
SIZE = {"width": 1360, "height": 1140}
READY = """() => typeof Pagelens !== "undefined"
    && Pagelens.scenarios?.player?.tracks.every(track => track.history && !track.history.growing)"""
SHOW = """() => {
    const { player } = Pagelens.scenarios;
    const { tracks } = player;
    player.pause();
    const telling = tracks.find(track => track.telling !== undefined);
    const step = telling.history.event(telling.telling).step;
    for (const track of tracks) player.move(track, track === telling ? track.telling : track.endOfStep(step));
}"""


def main(names: list[str]) -> None:
    """Serve, visit each scenario, and take its picture."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    loop = EngineLoop(Engine(EngineConfig(num_gpu_blocks_override=48)))
    loop.start()
    server = PageServer(uvicorn.Config(build_app(loop), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name in names:
                context = browser.new_context(viewport=SIZE, reduced_motion="reduce")
                _take(context.new_page(), f"{url}#scenario={name}", IMAGES / f"{name}.png")
                context.close()
                print(f"{name}.png")
            browser.close()
    finally:
        server.should_exit = True
        thread.join()


def _take(page: Page, url: str, to: Path) -> None:
    page.goto(url)
    page.wait_for_function(READY, timeout=120_000)
    page.evaluate(SHOW)
    page.wait_for_timeout(600)
    box = page.locator(".scenario-stage .tracks").bounding_box()
    assert box is not None
    box["height"] = min(box["height"], SIZE["height"] - box["y"])
    page.screenshot(path=to, clip=box)


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(path.stem for path in SCENARIOS.glob("*.toml")))
