"""What our own page sends, told apart from what another site's page makes a browser send."""

import msgspec
from fastapi import Request
from fastapi.responses import Response

from pagelens.engine.errors import PagelensError

MOST_BYTES = 256 * 1024


class Refused(PagelensError):
    """A request that gets `status` and a message instead of an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def refuse_foreign(request: Request) -> None:
    """A browser says which site a request comes from; another one must not drive this engine, nor use its streams.

    A program that is no browser says nothing, and passes. Raises Refused.
    """
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    own = f"{request.url.scheme}://{request.headers.get('host')}"
    if (origin is not None and origin.lower() != own.lower()) or site not in ("same-origin", "none"):
        raise Refused(403, f"commands come from this server's own page only, not from {origin or f'a {site} page'}")


async def read_json(request: Request) -> bytes:
    """The body of a POST of our own page. Raises Refused if it is another site's, is not JSON, or is too long."""
    refuse_foreign(request)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise Refused(415, f"a command is application/json, not {content_type or 'of no type'}")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise Refused(413, f"the command is larger than {MOST_BYTES:,} bytes: shorten the prompt")
    return body


def answer(data: object, status: int = 200) -> Response:
    """`data` as JSON."""
    return Response(msgspec.json.encode(data), status, media_type="application/json")


def answer_error(error: PagelensError) -> Response:
    """The message for people."""
    return answer({"error": str(error)}, error.status if isinstance(error, Refused) else 400)
