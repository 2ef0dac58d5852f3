"""The app: Gradio holds the page, our routes feed it, uvicorn serves both.

`gr.HTML` carries a constant template; what moves is drawn by the scripts of `static/` from the event stream, so no
Gradio event, queue or session takes part in the live view.
"""

import asyncio
import contextlib
import errno
import importlib.resources
import os
import socket
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.trustedhost import TrustedHostMiddleware

from pagelens.engine.errors import PagelensError

from . import scripts
from .access import Access, AccessLayer
from .login import login_routes
from .routes import MOST_VIEWERS, page_routes
from .scenario_file import SCENARIOS
from .scenario_routes import scenario_routes
from .scenario_runs import ScenarioRuns
from .scripts import STATIC
from .stream import EventStream

if TYPE_CHECKING:
    from pagelens.engine.engine_loop import EngineLoop

LOOPBACK = ("127.0.0.1", "localhost")


def build_app(
    loop: "EngineLoop",
    allowed_hosts: tuple[str, ...] = (),
    access: Access | None = None,
    max_viewers: int = MOST_VIEWERS,
    scenarios: tuple[Path, ...] = (SCENARIOS,),
) -> FastAPI:
    """The page and its routes on one app.

    `allowed_hosts` are the names under which it answers (none given: any), so that a foreign name that resolves to this
    machine cannot reach it. Without `access` everyone may do everything.
    `scenarios` are the folders of their files; a later one goes before an earlier one.
    """
    access = access or Access()
    app = FastAPI(title="Pagelens", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.stream = EventStream(loop)
    app.state.engine_loop = loop
    app.add_middleware(AccessLayer, access=access)
    if allowed_hosts:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts), www_redirect=False)
    app.mount("/pagelens/static", StaticFiles(directory=STATIC))
    app.get("/pagelens/plotly.min.js")(_plotly)
    app.include_router(page_routes(loop, app.state.stream, max_viewers))
    app.include_router(login_routes(access))
    app.include_router(scenario_routes(ScenarioRuns(scenarios, loop.log.header.config.get("kernel", "auto"))))
    gr.mount_gradio_app(
        app,
        _page(),
        path="/",
        ssr_mode=False,
        footer_links=[],
        run_history=False,
        theme=_theme(),
        show_error=False,
        max_file_size=1,  # nothing here is uploaded, so nobody fills the disk through Gradio's own route
    )
    return app


def serve(
    loop: "EngineLoop",
    host: str = "127.0.0.1",
    port: int = 7860,
    open_browser: bool = False,
    access: Access | None = None,
    max_viewers: int = MOST_VIEWERS,
    scenarios: tuple[Path, ...] = (SCENARIOS,),
) -> None:
    """Start the loop and serve the page until Ctrl-C.

    Raises PagelensError if the port is taken or the address is not this machine's.
    """
    access = access or Access()
    listener = _listen(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    app = build_app(loop, LOOPBACK if host in LOOPBACK else (), access, max_viewers, scenarios)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    if host not in (*LOOPBACK, "::1"):
        print(_warning(host, access), file=sys.stderr)
    loop.start()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            PageServer(config, url, open_browser).run(sockets=[listener])
    finally:
        loop.stop()
        print("stopped")


def _warning(host: str, access: Access) -> str:
    """What whoever lets other machines in should know."""
    if access.has_password:
        return f"Note: the password reaches {host} unencrypted, unless a proxy in front of Pagelens speaks HTTPS."
    may = "look and send prompts" if access.has_instructor else "look, send prompts, halt the engine and load models"
    return (
        f"Warning: everyone who reaches {host} may {may}, and so may any web page that one of them has open (by DNS "
        "rebinding). Set PAGELENS_PASSWORD, or listen on 127.0.0.1 only."
    )


class PageServer(uvicorn.Server):
    """Says where the page is once it is up, and ends the endless streams first when it stops."""

    def __init__(self, config: uvicorn.Config, url: str = "", open_browser: bool = False) -> None:
        super().__init__(config)
        self._url = url
        self._open_browser = open_browser

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve, then tell the user."""
        await super().startup(sockets)
        if self.started and self._url:
            print(f"Pagelens is at {self._url} (Ctrl-C stops it)", flush=True)
            if self._open_browser:
                webbrowser.open(self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the event streams: uvicorn waits for every open response."""
        app: Any = self.config.app
        app.state.stream.close()
        await asyncio.to_thread(app.state.engine_loop.stop)  # answers whoever waits for a step
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise PagelensError(f"port is {port}, allowed is 0 (any free one) to 65535")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    if os.name == "posix":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PagelensError(
                f"port {port} on {host} is in use, perhaps by another Pagelens: "
                f"stop that one, or choose a port with --port {port + 1}"
            ) from None
        raise PagelensError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


def _plotly() -> FileResponse:
    """What draws the counters; large, so a browser may keep it for a week."""
    path = str(importlib.resources.files("plotly") / "package_data" / "plotly.min.js")
    return FileResponse(path, media_type="text/javascript", headers={"Cache-Control": "private, max-age=604800"})


def _page() -> gr.Blocks:
    version = scripts.version()
    sheets = ("pagelens.css", "forms.css", "scenarios.css")
    tags = [f'<link rel="stylesheet" href="/pagelens/static/{name}?v={version}">' for name in sheets]
    tags += [
        f'<script src="/pagelens/static/{name}?v={version}"></script>'
        for name in (*scripts.VIEWER_SCRIPTS, *scripts.PAGE_SCRIPTS)
    ]
    live = (STATIC / "live.html").read_text(encoding="utf-8")
    with gr.Blocks(title="Pagelens", analytics_enabled=False, fill_width=True) as page:
        for title, template, script in (
            ("Live", live, f'Pagelens.startLive(element, "{version}"); Pagelens.startAccess("{version}")'),
            ("Scenarios", '<div class="pagelens scenarios"></div>', "Pagelens.startScenarios(element)"),
            ("Chat", '<div class="pagelens chat"></div>', f'Pagelens.startChat(element, "{version}")'),
            ("Memory calculator", '<div class="pagelens calculator"></div>', "Pagelens.startCalculator(element)"),
            ("About this engine", '<div class="pagelens"></div>', f'Pagelens.startAbout(element, "{version}")'),
        ):
            head = "\n".join(tags) if title == "Live" else None
            with gr.Tab(title):
                gr.HTML(html_template=template, head=head, js_on_load=script, apply_default_css=False)
    return page


def _theme() -> gr.themes.Base:
    fonts = ["system-ui", "Segoe UI", "Noto Sans", "DejaVu Sans", "sans-serif"]
    mono = ["ui-monospace", "Cascadia Mono", "DejaVu Sans Mono", "monospace"]
    theme = gr.themes.Default(primary_hue="amber", neutral_hue="slate", font=fonts, font_mono=mono)
    return theme.set(color_accent="#c2710c", body_background_fill="#f6f7f9", body_background_fill_dark="#0d1116")
