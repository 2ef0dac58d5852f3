"""Signing in and out: the routes of `access.py`, and the page that asks for the password."""

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response

from pagelens.engine.errors import PagelensError

from .access import Access, Visitor, cookie_header
from .own_page import answer, answer_error, read_json, refuse_foreign
from .scripts import STATIC


class Password(msgspec.Struct, forbid_unknown_fields=True):
    """What the form sends."""

    password: str


def login_routes(access: Access) -> APIRouter:
    """Who somebody is, and how they become somebody else."""
    router = APIRouter(prefix="/pagelens")

    @router.get("/me")
    async def me(request: Request) -> Response:
        visitor: Visitor = request.state.visitor
        return answer({"role": visitor.role, "instructor_password": access.has_instructor})

    @router.get("/login")
    async def page() -> Response:
        return FileResponse(STATIC / "login.html", headers={"Cache-Control": "no-store"})

    @router.post("/login")
    async def sign_in(request: Request) -> Response:
        before: Visitor | None = request.state.visitor
        address = request.client.host if request.client else ""
        try:
            given = msgspec.json.decode(await read_json(request), type=Password)
            visitor = access.sign_in(given.password, address, before.name if before else "")
        except msgspec.DecodeError as error:
            return answer({"error": f"this is no password: {error}"}, 400)
        except PagelensError as error:
            return answer_error(error)
        return _as(request, access, visitor)

    @router.post("/logout")
    async def sign_out(request: Request) -> Response:
        try:
            refuse_foreign(request)
        except PagelensError as error:
            return answer_error(error)
        return _as(request, access, access.newcomer())

    return router


def _as(request: Request, access: Access, visitor: Visitor | None) -> Response:
    """From the next request on the browser is `visitor`, or nobody."""
    response = answer({"role": visitor.role if visitor else None})
    response.headers["Set-Cookie"] = cookie_header(request.scope, access.ticket(visitor) if visitor else "")
    return response
