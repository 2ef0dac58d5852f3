"""The table of source lines: every event that the engine emits has one, and the line is the emit."""

import re
from pathlib import Path

import pytest
from scripted import crowded_run

from pagelens.engine import source_lines as module
from pagelens.engine.events import EVENT_TYPES, Why
from pagelens.engine.source_lines import source_lines

ROOT = Path(module.__file__).parents[1]


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_kind_has_a_line_and_the_line_emits_it(kind: str) -> None:
    found = {key: places for key, places in source_lines().items() if key.split("/")[0] == kind}
    assert found
    for key, places in found.items():
        for place in places.split(" or "):
            file, line = place.rsplit(":", 1)
            lines = (ROOT / file).read_text().splitlines()[int(line) - 1 :]
            assert "emit(" in lines[0], place
            call = " ".join(lines[:3])
            assert re.search(rf"\bev\.{kind}\b", call), place
            if "/" in key:
                assert re.search(rf"\bWhy\.{Why(key.split('/')[1]).name}\b", call), place


def test_whatever_a_run_emits_leads_to_a_line() -> None:
    log = crowded_run(host_blocks=30).log
    sources = log.header.sources
    for event in log.read(0) or []:
        kind = type(event).__name__
        assert sources.get(f"{kind}/{event.why}") or sources.get(kind), (kind, event.why)


def test_places_that_emit_the_same_are_both_named() -> None:
    assert source_lines()["RequestRejected/invalid"].count(" or ") == 1
