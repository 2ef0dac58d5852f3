"""Our own routes on the app: the event stream, commands and the recording.

Gradio's login does not cover them, so they guard themselves: a command must come from a page of this very server.
"""

import asyncio
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from pagelens.engine.errors import PagelensError
from pagelens.engine.event_log import EventLog
from pagelens.engine.kvtrace import encode_event

from .commands import execute
from .stream import EventStream

if TYPE_CHECKING:
    from pagelens.engine.engine_loop import EngineLoop

MOST_COMMAND_BYTES = 256 * 1024


class Refused(Exception):
    """A request that gets `status` and a message instead of an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def page_routes(loop: "EngineLoop", stream: EventStream) -> APIRouter:
    """Everything under /pagelens but the page's files."""
    router = APIRouter(prefix="/pagelens")

    @router.get("/events")
    async def events() -> StreamingResponse:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream.messages(), media_type="text/event-stream", headers=headers)

    @router.post("/command")
    async def command(request: Request) -> Response:
        try:
            _refuse_foreign(request)
            body = await _read_body(request)
            result = await asyncio.to_thread(execute, loop, body)
        except Refused as refusal:
            return _json({"error": str(refusal)}, refusal.status)
        except PagelensError as error:
            return _json({"error": str(error)}, 400)
        return _json(result)

    @router.get("/recording")
    async def recording() -> Response:
        log = loop.log
        trace = await asyncio.to_thread(record, log)
        name = f"pagelens-{log.header.run}.kvtrace"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(trace, media_type="application/x-ndjson", headers=headers)

    return router


def record(log: EventLog) -> bytes:
    """The events held now, as a `.kvtrace`."""
    base, events = log.held()
    header = msgspec.structs.replace(log.header, base=base if base.seq >= 0 else None)
    return b"".join([msgspec.json.encode(header) + b"\n", *(encode_event(event) + b"\n" for event in events)])


def _refuse_foreign(request: Request) -> None:
    """A browser names the page's origin in every POST; one of another site must not drive this engine."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise Refused(403, f"commands come from this server's own page only, not from {origin}")
    content_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if content_type != "application/json":
        raise Refused(415, f"a command is application/json, not {content_type or 'of no type'}")


async def _read_body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_COMMAND_BYTES:
            raise Refused(413, f"the command is larger than {MOST_COMMAND_BYTES:,} bytes: shorten the prompt")
    return body


def _json(data: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")
