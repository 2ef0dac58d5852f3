"""Lessons as modules, and their pages as text."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tutorials/lessons"))


@pytest.fixture(scope="module")
def lesson(request: pytest.FixtureRequest) -> ModuleType:
    """The lesson that a test module names in LESSON."""
    return importlib.import_module(request.module.LESSON)


@pytest.fixture(scope="module")
def says(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Assert that the prose of the lesson's page contains these pieces, however its lines are broken."""
    page = ROOT / "docs/lessons" / f"{request.module.LESSON}.md"
    text = " ".join(page.read_text(encoding="utf-8").split())

    def check(*pieces: str) -> None:
        for piece in pieces:
            assert piece in text, f"{page.name} does not say {piece!r}"

    return check
