"""What the live view costs, and how quickly it shows what happened, in a real Chromium.

    python benchmarks/live_view.py                 # all of it, some four minutes
    python benchmarks/live_view.py tabs recording  # or some of: tabs, large, class, recording, scenario

tabs       10,000 blocks at about 30 steps/s, four tabs: updates/s of each, latency from event to paint, server CPU,
           bytes per update, and the steps/s that the engine loses to them. Aims: >= 20/s each, p95 <= 100 ms, <= 5 %.
large      40,000 blocks and some 30,000 events/s in one tab: still usable?
class      thirty readers of the stream. Aim: <= 30 % of one core.
recording  1,000,000 events from a file. Aims: opens in <= 5 s, scrubs in <= 100 ms.
scenario   from the click on "parallel sampling" to the first copy on the screen, for the first visitor who
           skips its questions. Aim: <= 5 s.
"""

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machine import print_machine
from playwright.sync_api import Browser, Page, sync_playwright

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine.kvtrace import TraceWriter
from pagelens.engine.runner import ScriptedRunner

HERE = Path(__file__).parent

READY = "typeof Pagelens !== 'undefined' && Pagelens.live?.viewer.map"

OPEN_WINDOW = "url => { window.open(url, '_blank', 'popup,noopener,width=1280,height=900'); }"

WATCH_PAINTS = """began => {
  const { viewer } = Pagelens.live;
  const paints = window.paints = [];
  let last = -1;
  const painted = viewer.painted;
  viewer.painted = () => {
    painted();
    const { history, map } = viewer;
    if (map.seq === last) return;
    last = map.seq;
    const wall = (performance.timeOrigin + performance.now()) / 1000;
    paints.push([wall, wall - began - history.event(map.seq).t / 1e9]);
  };
}"""

SHOWS_A_COPY = """() => [...document.querySelectorAll("[data-part=headline-title]")]
  .some(title => title.checkVisibility() && title.textContent === "Copy-on-write.")"""

SCRUBS = """async () => {
  const { viewer } = Pagelens.live;
  const { oldest, newest } = viewer.history;
  const times = [];
  for (let i = 1; i <= 60; i++) {
    const seq = oldest + (i * 7919 * 613) % (newest - oldest);
    const started = performance.now();
    viewer.goTo(seq);
    await new Promise(requestAnimationFrame);
    await new Promise(done => setTimeout(done));
    times.push(performance.now() - started);
  }
  return times;
}"""


class Server:
    """A server process, and what it says of itself."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def state(self) -> dict[str, float]:
        """Its counters and clocks, see live_view_server.py."""
        with urllib.request.urlopen(f"{self.url}/benchmark", timeout=10) as answer:
            state: dict[str, float] = json.load(answer)
        return state

    def rates(self, seconds: float) -> tuple[float, float, float]:
        """(steps/s, events/s, cores in use) over the next `seconds`."""
        before = self.state()
        time.sleep(seconds)
        after = self.state()
        passed = after["now"] - before["now"]
        return tuple((after[name] - before[name]) / passed for name in ("steps", "events", "cpu"))  # type: ignore[return-value]


@contextmanager
def serving(*command: str) -> Iterator[Server]:
    """A server on a free port, killed at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(HERE / "live_view_server.py"), str(port), *command])
    server = Server(port)
    try:
        for _ in range(300):
            try:
                server.state()
                break
            except OSError:
                time.sleep(0.1)
        yield server
    finally:
        process.kill()
        process.wait()


def open_tabs(browser: Browser, server: Server, tabs: int) -> list[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    pages = [context.new_page()]
    pages[0].goto(server.url)
    while len(pages) < tabs:  # each in a window of its own: a browser hardly paints a hidden tab
        with context.expect_page() as opened:
            pages[0].evaluate(OPEN_WINDOW, server.url)
        pages.append(opened.value)
    for page in pages:
        page.wait_for_function(READY, timeout=60_000)
    began = server.state()["began"]
    for page in pages:
        page.evaluate(WATCH_PAINTS, began)
    return pages


def print_paints(pages: list[Page], seconds: float) -> None:
    for number, page in enumerate(pages, start=1):
        paints = page.evaluate("window.paints")
        delays = sorted(delay * 1000 for _, delay in paints)
        p50, p95 = delays[len(delays) // 2], delays[int(len(delays) * 0.95)]
        print(
            f"  tab {number}: {len(paints) / seconds:5.1f} updates/s, event to paint {p50:.0f} ms p50, {p95:.0f} ms p95"
        )


def bytes_per_message(server: Server, seconds: float) -> tuple[float, float]:
    """(bytes, messages/s) of one reader's stream after its snapshot."""
    sizes: list[int] = []
    with urllib.request.urlopen(f"{server.url}/pagelens/events", timeout=30) as stream:
        started = time.time()
        while time.time() - started < seconds:
            line = stream.readline()
            if line.startswith(b"data: "):
                sizes.append(len(line))
    return statistics.mean(sizes[1:]), (len(sizes) - 1) / seconds


def measure_tabs(browser: Browser, blocks: int, sequences: int, seconds_per_launch: str, tabs: int) -> None:
    with serving(str(blocks), str(sequences), seconds_per_launch) as server:
        time.sleep(8)  # let the pool fill
        alone, events, cpu_alone = server.rates(8)
        pages = open_tabs(browser, server, tabs)
        time.sleep(2)
        for page in pages:
            page.evaluate("window.paints.length = 0")
        watched, _, cpu = server.rates(12)
        print(f"{blocks} blocks, {sequences} sequences, {tabs} tabs")
        print_paints(pages, 12)
        print(f"  engine {alone:.1f} steps/s alone, {watched:.1f} watched: {100 * (1 - watched / alone):.1f} % slower")
        print(f"  {events:,.0f} events/s; server {100 * cpu:.0f} % of a core, {100 * cpu_alone:.0f} % without viewers")
        size, rate = bytes_per_message(server, 5)
        print(f"  {size / 1024:.1f} KiB per update, {rate:.1f} updates/s on the wire")
        for page in pages:
            page.close()


def measure_class(readers: int = 30) -> None:
    """Readers in another process, which only throw away what they get."""
    code = (
        "import socket, sys, selectors, time\n"
        "wait = selectors.DefaultSelector()\n"
        f"for _ in range({readers}):\n"
        "    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "    s.sendall(b'GET /pagelens/events HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n')\n"
        "    s.setblocking(False); wait.register(s, selectors.EVENT_READ)\n"
        "while True:\n"
        "    for key, _ in wait.select(): key.fileobj.recv(1 << 20)\n"
    )
    with serving("10000", "64", "0.025") as server:
        time.sleep(6)
        _, _, alone = server.rates(8)
        process = subprocess.Popen([sys.executable, "-c", code, server.url.rpartition(":")[2]])
        try:
            time.sleep(3)
            steps, _, cpu = server.rates(10)
        finally:
            process.kill()
            process.wait()
        print(f"{readers} readers: server uses {100 * cpu:.0f} % of a core, {100 * alone:.0f} % without them: "
              f"{100 * (cpu - alone):.0f} % for all of them, {steps:.1f} steps/s")  # fmt: skip


def write_recording(path: Path, events: int) -> None:
    """A run of a scripted engine with `events` events."""
    config = EngineConfig(num_gpu_blocks_override=4000, max_model_len=2048, max_num_seqs=32, max_num_batched_tokens=512)
    engine = Engine(config, runner=ScriptedRunner(lambda sequence, index: (sequence.num_tokens + index) % 5000))
    number = 0
    with TraceWriter(path, engine.log) as writer:
        while engine.log.next_seq < events:
            while len(engine.requests) < 32:
                number += 1
                params = SamplingParams(max_tokens=100 + number % 200, n=1 + number % 3, temperature=1)
                engine.add_request([number % 50] * (50 + number % 300), params)
            engine.step()
            writer.drain()


def measure_recording(browser: Browser, events: int = 1_000_000) -> None:
    with tempfile.TemporaryDirectory() as folder, serving("96", "4", "0.5") as server:
        path = Path(folder) / "run.kvtrace"
        write_recording(path, events)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(server.url)
        page.wait_for_function(READY)
        page.evaluate("""() => {
          document.querySelector("input[type=file]").addEventListener("change", () => {
            const started = performance.now();
            const banner = document.querySelector("[data-part=banner]");
            const watch = () => /events(?!, reading)/.test(banner.textContent) && !banner.hidden
              ? requestAnimationFrame(() => { window.opened = performance.now() - started; }) : setTimeout(watch, 5);
            watch();
          }, { capture: true });
        }""")
        page.locator("input[type=file]").set_input_files(path)
        page.wait_for_function("window.opened", timeout=120_000)
        seconds = page.evaluate("window.opened") / 1000
        said = page.locator("[data-part=banner]").inner_text()
        times = sorted(page.evaluate(SCRUBS))
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
        print(f"recording of {path.stat().st_size / 1e6:.0f} MB opens in {seconds:.1f} s ({said.splitlines()[0]})")
        print(f"  scrubs in {times[30]:.0f} ms p50, {times[57]:.0f} ms p95, {times[-1]:.0f} ms at most")
        print(f"  {heap:.0f} MiB of heap")
        page.close()


def measure_scenario(browser: Browser) -> None:
    with serving("96", "4", "0.5") as server:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(server.url)
        page.wait_for_function(READY)
        page.get_by_role("tab", name="Scenarios").click()
        card = page.get_by_role("button", name="Parallel sampling").first
        card.wait_for()
        started = time.time()
        card.click()
        while not page.evaluate(SHOWS_A_COPY):
            for words in ("skip", "go on"):
                button = page.get_by_role("button", name=words, exact=True)
                if button.is_visible():
                    button.click()
            page.wait_for_timeout(20)
        print(f"scenario: from the click to the first copy on the screen {time.time() - started:.1f} s")
        page.close()


def main() -> None:
    wanted = sys.argv[1:] or ["tabs", "large", "class", "recording", "scenario"]
    print_machine()
    with sync_playwright() as playwright:
        system: dict[str, Any] = {"executable_path": "/usr/bin/chromium"} if Path("/usr/bin/chromium").exists() else {}
        browser = playwright.chromium.launch(args=["--no-sandbox", "--enable-precise-memory-info"], **system)
        if "tabs" in wanted:
            measure_tabs(browser, 10_000, 64, "0.025", tabs=4)
        if "large" in wanted:
            measure_tabs(browser, 40_000, 512, "0.006", tabs=1)
        if "class" in wanted:
            measure_class()
        if "recording" in wanted:
            measure_recording(browser)
        if "scenario" in wanted:
            measure_scenario(browser)
        browser.close()


if __name__ == "__main__":
    main()
