"""A real Pagelens on a free port, in this process so that a test can ask both sides, and a browser that visits it."""

import contextlib
import os
import threading
import time
from typing import Any

import uvicorn
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request

from pagelens.engine import Engine, EngineConfig
from pagelens.engine.engine_loop import EngineLoop
from pagelens.engine.errors import RequestError
from pagelens.viz.app import PageServer, build_app

CONFIG = {"kernel": "torch", "num_gpu_blocks_override": 48, "max_num_seqs": 16, "max_num_batched_tokens": 128}

NO_END_TOKENS: frozenset[int] = frozenset()
"""So that a sequence is as long as a test asks for."""


class Site:
    """A Pagelens that can be killed and started again on the same port."""

    def __init__(self, **options: Any) -> None:
        self.port = 0
        self.options = options  # of `build_app`
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        engine = Engine(EngineConfig(model=os.environ.get("PAGELENS_TEST_MODEL", ""), **CONFIG))
        engine._eos_token_ids = NO_END_TOKENS
        self.loop = EngineLoop(engine)
        self.loop.start()
        self.server = PageServer(
            uvicorn.Config(build_app(self.loop, **self.options), port=self.port, log_level="error")
        )
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.02)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        assert not self.thread.is_alive(), "the server did not stop"
        self.loop.stop()

    def become_idle(self) -> None:
        """Withdraw what the last test left, and run on, slowly enough for a test to catch a request while it runs."""
        for request in list(self.loop.engine.requests):
            with contextlib.suppress(RequestError):  # it finished meanwhile
                self.loop.abort(request)
        self.loop.steps_per_second = 30.0
        self.loop.run()


class Visitor:
    """A browser with its tabs; notes what went wrong in any of them."""

    def __init__(self, context: BrowserContext, site: Site) -> None:
        self.context = context
        self.site = site
        self.complaints: list[str] = []
        self.urls: list[str] = []
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        context.on("request", self._on_request)

    def open(self) -> Page:
        page = self.context.new_page()
        page.goto(self.site.url)
        page.wait_for_function("typeof Pagelens !== 'undefined' && Pagelens.source?.history")
        return page

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _on_request(self, request: Request) -> None:
        self.urls.append(request.url)


def map_of(page: Page) -> Any:
    """The page's picture, as JSON."""
    return page.evaluate("({...Pagelens.source.history.map})")
