"""Routes of the scenarios: which there are, a run as it is made, and its recording to keep."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from pagelens.engine.errors import PagelensError

from .own_page import answer, answer_error, refuse_foreign
from .scenario import Scenario
from .scenario_runs import ScenarioRun, ScenarioRuns

POLL_SECONDS = 0.03
SHOWN = ("name", "title", "summary", "watch", "conclusion", "pace", "clock", "tables", "variants", "tour", "questions")


def scenario_routes(runs: ScenarioRuns) -> APIRouter:
    """Reads files and starts engines of its own; nothing here touches the engine that is served."""
    router = APIRouter(prefix="/pagelens")

    @router.get("/scenarios")
    def scenarios() -> Response:
        found, problems = [], []
        for name in runs.paths():
            try:
                found.append(runs.read(name))
            except PagelensError as error:
                problems.append(str(error))
        found.sort(key=lambda scenario: (scenario.order, scenario.name))
        return answer({"scenarios": [_shown(scenario) for scenario in found], "problems": problems})

    @router.get("/scenario/{name}")
    async def scenario(request: Request, name: str, variant: str = "") -> Response:
        try:
            refuse_foreign(request)
            run = await asyncio.to_thread(runs.run, name, variant)
        except PagelensError as error:
            return answer_error(error)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_parts(run), media_type="application/x-ndjson", headers=headers)

    @router.get("/scenario/{name}/recording")
    async def recording(request: Request, name: str, variant: str = "") -> Response:
        try:
            refuse_foreign(request)
            run = await asyncio.to_thread(runs.run, name, variant)
        except PagelensError as error:
            return answer_error(error)
        while not run.is_over:
            await asyncio.sleep(POLL_SECONDS)
        if run.error:
            return answer({"error": run.error}, 400)
        file = f"{name}-{variant}.kvtrace" if variant else f"{name}.kvtrace"
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return Response(run.trace(), media_type="application/x-ndjson", headers=headers)

    return router


def _shown(scenario: Scenario) -> dict[str, Any]:
    """What the page is told of a scenario."""
    return {field: getattr(scenario, field) for field in SHOWN}


async def _parts(run: ScenarioRun) -> AsyncIterator[bytes]:
    """Everything from the beginning, and what comes while the run goes on."""
    sent = 0
    while True:
        is_over, parts = run.is_over, run.parts[sent:]
        if parts:
            sent += len(parts)
            yield b"".join(parts)
        elif is_over:
            return
        else:
            await asyncio.sleep(POLL_SECONDS)
