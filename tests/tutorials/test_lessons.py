"""What holds for every lesson: it runs, its pictures can be read without seeing them, its page shows all of it."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
LESSONS = sorted(path.stem for path in (ROOT / "tutorials/lessons").glob("[0-9]*.py"))
SVG = "{http://www.w3.org/2000/svg}"


def page(name: str) -> str:
    return (ROOT / "docs/lessons" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LESSONS)
def test_every_part_and_picture_is_on_the_page(name: str) -> None:
    lesson = importlib.import_module(name)
    shown = set(re.findall(rf"^<!-- pagelens: (?:printed|picture) {name}\.(\w+) -->$", page(name), re.MULTILINE))
    written = {function.__name__ for function in [*lesson.PARTS, *lesson.PICTURES]}
    assert written - shown <= {"what_became_of_it"}
    assert shown <= written


@pytest.mark.parametrize("name", LESSONS)
def test_pictures_are_well_formed_and_have_a_title(name: str) -> None:
    for picture in importlib.import_module(name).PICTURES:
        svg = picture()
        root = ElementTree.fromstring(svg)
        title = root.find(f"{SVG}title")
        assert root.get("role") == "img" and title is not None and len(title.text or "") > 30, picture.__name__
        assert root.get("aria-labelledby") == title.get("id")
        assert "\n\n" not in svg


@pytest.mark.parametrize("name", LESSONS)
def test_a_page_has_questions_with_hidden_answers_and_exercises(name: str) -> None:
    text = page(name)
    assert len(re.findall(r"^\?\?\? question ", text, re.MULTILINE)) >= 3
    assert "## Try it" in text and re.search(r"^3\. ", text, re.MULTILINE)
    assert len(re.findall(r"^<!-- pagelens: code ", text, re.MULTILINE)) >= 2
    assert f"python tutorials/lessons/{name}.py" in text


@pytest.mark.parametrize("name", LESSONS)
def test_links_to_code_find_it(name: str) -> None:
    for path, names in re.findall(r"^<!-- pagelens: code (\S+):(\S+) -->$", page(name), re.MULTILINE):
        source = (ROOT / path).read_text(encoding="utf-8")
        for part in names.split("."):
            assert re.search(rf"^\s*(class|def) {part}\b", source, re.MULTILINE), f"{part} is not in {path}"


def test_every_lesson_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f"lessons/{name}.md" in nav for name in LESSONS)


@pytest.mark.parametrize("name", LESSONS)
def test_parts_print_and_their_first_line_is_a_heading(name: str) -> None:
    for part in importlib.import_module(name).PARTS:
        heading = (part.__doc__ or "").partition("\n")[0]
        assert 3 < len(heading) < 90 and not heading.endswith("."), f"{part.__name__}: {heading}"


def test_a_lesson_runs_as_a_script_and_writes_its_pictures(tmp_path: Path) -> None:
    script = ROOT / "tutorials/lessons/02_copy_on_write.py"
    command = [sys.executable, str(script), "--pictures", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lesson = importlib.import_module(script.stem)
    assert {path.stem for path in tmp_path.glob("*.svg")} == {picture.__name__ for picture in lesson.PICTURES}
    assert all("<style>" in path.read_text() for path in tmp_path.glob("*.svg"))
    assert "1. " in done.stdout and "wrote " in done.stdout
