"""Our own routes on the app: the event stream, commands, history and the recording.

`access.py` has let the visitor in; here a command must come from a page of this very server, and be one that they may
give.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pagelens.engine.errors import PagelensError
from pagelens.engine.event_log import KEYFRAME_EVERY, EventLog
from pagelens.engine.events import Event
from pagelens.engine.kvtrace import recording as recording_of
from pagelens.engine.memory_map import MemoryMap

from .commands import Commands
from .own_page import Refused, answer, answer_error, read_json, refuse_foreign
from .stream import EventStream

if TYPE_CHECKING:
    from pagelens.engine.engine_loop import EngineLoop

MOST_VIEWERS = 200


class Watching(StreamingResponse):
    """A reader's stream: among `streams` from when it is granted until it ends, so that no rush exceeds their limit."""

    def __init__(self, streams: set[Response], content: AsyncIterator[bytes], **options: Any) -> None:
        super().__init__(content, **options)
        self._streams = streams
        streams.add(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the messages until the reader goes or the server stops."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.discard(self)


def page_routes(loop: "EngineLoop", stream: EventStream, max_viewers: int = MOST_VIEWERS) -> APIRouter:
    """What the page of one loop asks for. At most `max_viewers` streams are open at once, one for each browser."""
    router = APIRouter(prefix="/pagelens")
    commands = Commands(loop)
    open_streams: set[Response] = set()

    @router.get("/events")
    async def events(request: Request) -> Response:
        try:
            refuse_foreign(request)
            if len(open_streams) >= max_viewers:
                raise Refused(
                    503, f"{len(open_streams)} browsers watch, and {max_viewers} is the most (--max-viewers): try later"
                )
        except PagelensError as error:
            return answer_error(error)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return Watching(open_streams, stream.messages(), media_type="text/event-stream", headers=headers)

    @router.post("/command")
    async def command(request: Request) -> Response:
        try:
            body = await read_json(request)
            return answer(await asyncio.to_thread(commands.execute, body, request.state.visitor))
        except PagelensError as error:
            return answer_error(error)

    @router.get("/loading")
    async def loading() -> Response:
        return answer(commands.loading.state)

    @router.get("/history")
    async def history(run: str, before: int) -> Response:
        try:
            base, events = await asyncio.to_thread(_stretch_before, loop.log, run, before)
        except ValueError as error:
            return answer({"error": str(error)}, 404)
        return answer({"base": base, "events": events})

    @router.get("/recording")
    async def recording() -> Response:
        log = loop.log
        trace = await asyncio.to_thread(recording_of, log)
        name = f"pagelens-{log.header.run}.kvtrace"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(trace, media_type="application/x-ndjson", headers=headers)

    return router


def _stretch_before(log: EventLog, run: str, before: int) -> tuple[MemoryMap, list[Event]]:
    """The events up to before `before`, back to a keyframe, on the picture before them."""
    if run != log.header.run:
        raise ValueError(f"run {run} is over: this is run {log.header.run}")
    start = max(log.oldest_seq, (before - 1) // KEYFRAME_EVERY * KEYFRAME_EVERY)
    if not start < before <= log.next_seq:
        raise ValueError(
            f"there is nothing before event {before}: this run holds {log.oldest_seq} to {log.next_seq - 1}"
        )
    return log.stretch(start, before)
