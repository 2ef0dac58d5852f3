"""Access: who may see the page, and who may move the engine for everyone.

    passwords set                 without a cookie       --password         --instructor-password
    none                          instructor             -                  -
    --password                    must sign in           instructor         -
    --instructor-password         viewer                 -                  instructor
    both                          must sign in           viewer             instructor

One mechanism for Gradio's pages and our own routes: a layer in front of all of them. Whoever comes gets a cookie that
the server has signed with a secret of this process, and keeps nothing about it:

    pagelens-7860 = k3Jd0aPq.viewer.5f2c...            name . role . signature

A viewer looks, scrubs, prompts, chats, and withdraws what they sent themselves; an instructor does everything.
"""

import hashlib
import hmac
import secrets
import time
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagelens.engine.errors import ConfigError

from .own_page import Refused, answer

LOGIN_PAGE = "/pagelens/login"
OPEN_PATHS = (LOGIN_PAGE, "/pagelens/static/")
WRONG_GUESSES, GUESSING_SECONDS = 10, 60.0


class Role(StrEnum):
    """What somebody may do."""

    VIEWER = "viewer"
    INSTRUCTOR = "instructor"


@dataclass(frozen=True)
class Visitor:
    """Whoever sends a request. The name is random: it tells visitors apart, and says nothing about them."""

    name: str
    role: Role


class Access:
    """The passwords, and the signatures of this process.

    Raises ConfigError if a password is empty, or both are the same.
    """

    def __init__(self, password: str | None = None, instructor_password: str | None = None) -> None:
        if password == "" or instructor_password == "":
            raise ConfigError("a password is empty: give one with at least one character, or leave the option out")
        if password is not None and password == instructor_password:
            raise ConfigError("the password and the instructor's password are the same: choose another for one of them")
        self._password = password
        self._instructor_password = instructor_password
        self._secret = secrets.token_bytes(32)
        self._guesses: dict[str, deque[float]] = {}

    @property
    def has_password(self) -> bool:
        """Whether everyone must sign in."""
        return self._password is not None

    @property
    def has_instructor(self) -> bool:
        """Whether some rights are the instructor's alone."""
        return self._instructor_password is not None

    def newcomer(self) -> Visitor | None:
        """Somebody without a cookie; None if they must sign in."""
        if self.has_password:
            return None
        return Visitor(secrets.token_urlsafe(9), Role.VIEWER if self.has_instructor else Role.INSTRUCTOR)

    def sign_in(self, password: str, address: str, name: str = "") -> Visitor:
        """The visitor that knows `password`, under the `name` they had before.

        Raises Refused if it is wrong, or if there were too many wrong ones from this address.
        """
        guesses = self._recent_guesses(address)
        if len(guesses) >= WRONG_GUESSES:
            wait = max(1, round(guesses[0] + GUESSING_SECONDS - time.monotonic()))
            raise Refused(429, f"{len(guesses)} wrong passwords in a minute is the most: try again in {wait} s")
        role = self._role_for(password)
        if role is None:
            guesses.append(time.monotonic())
            self._guesses[address] = guesses
            raise Refused(403, "this is not the password")
        return Visitor(name or secrets.token_urlsafe(9), role)

    def ticket(self, visitor: Visitor) -> str:
        """The value of the visitor's cookie."""
        text = f"{visitor.name}.{visitor.role}"
        return f"{text}.{hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()}"

    def read_ticket(self, ticket: str) -> Visitor | None:
        """The visitor whose cookie this is; None if this process did not sign it."""
        name, _, rest = ticket.partition(".")
        role = rest.partition(".")[0]
        if role not in tuple(Role):
            return None
        visitor = Visitor(name, Role(role))
        return visitor if hmac.compare_digest(self.ticket(visitor).encode(), ticket.encode()) else None

    def _role_for(self, password: str) -> Role | None:
        if _same(password, self._instructor_password):
            return Role.INSTRUCTOR
        if _same(password, self._password):
            return Role.VIEWER if self.has_instructor else Role.INSTRUCTOR
        return None

    def _recent_guesses(self, address: str) -> deque[float]:
        """When wrong passwords came from `address` within the last minute; older ones of everybody are forgotten."""
        since = time.monotonic() - GUESSING_SECONDS
        recent = {who: deque(t for t in times if t > since) for who, times in self._guesses.items()}
        self._guesses = {who: times for who, times in recent.items() if times}
        return self._guesses.get(address, deque())


class AccessLayer:
    """Stands in front of the whole app: lets in who may come in, and tells the routes who it is."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its visitor in `request.state`, or answer that they must sign in."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        known = self._access.read_ticket(HTTPConnection(scope).cookies.get(_cookie_name(scope), ""))
        visitor = known or self._access.newcomer()
        is_open = scope["path"].startswith(OPEN_PATHS)
        if visitor is None and not is_open:
            await _ask_to_sign_in(scope)(scope, receive, send)
            return
        scope.setdefault("state", {})["visitor"] = visitor
        if known is not None or visitor is None or is_open:
            await self._app(scope, receive, send)
            return
        cookie = cookie_header(scope, self._access.ticket(visitor))

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        await self._app(scope, receive, send_with_cookie)


def cookie_header(scope: Scope, ticket: str) -> str:
    """A `Set-Cookie` that scripts cannot read and other sites' forms do not bring along.

    SameSite is Lax, not Strict: after a link from elsewhere a strict cookie stays away, so that this server would take
    an instructor for a newcomer and hand them a new cookie. Only a POST changes anything, and Lax keeps those out.
    """
    secure = "; Secure" if scope["scheme"] in ("https", "wss") else ""
    return f"{_cookie_name(scope)}={ticket}; Path=/; HttpOnly; SameSite=Lax{secure}"


def _same(given: str, password: str | None) -> bool:
    return password is not None and hmac.compare_digest(given.encode(errors="replace"), password.encode())


def _cookie_name(scope: Scope) -> str:
    """With the port, since a browser does not tell the servers of one host apart by theirs."""
    return f"pagelens-{(scope.get('server') or ('', ''))[1] or ''}"


def _ask_to_sign_in(scope: Scope) -> ASGIApp:
    wants_page = scope["type"] == "http" and "text/html" in Headers(scope=scope).get("accept", "")
    if wants_page and scope["method"] == "GET":
        return RedirectResponse(LOGIN_PAGE, 303)
    return answer({"error": f"this Pagelens asks for a password: sign in at {LOGIN_PAGE}"}, 401)
