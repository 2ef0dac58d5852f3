"""Where in the engine's source an event is emitted, so that a viewer can show the line behind it.

    self._log.emit(ev.BlockCopied, Why.SHARED_BLOCK) -> "BlockCopied/shared_block": "engine/kv_cache_manager.py:101"
    plan.event = self._log.emit(ev.StepPlanned, why) -> "StepPlanned": "engine/scheduler.py:312"

Read from the source text, once: asking for the line at every emit would cost more than the emit. A call that is handed
its kind stands for nothing; whoever calls that with a kind does.
"""

import ast
import functools
from collections.abc import Container, Iterator
from pathlib import Path

from .events import EVENT_TYPES, Why

EMITTERS = ("emit", "_emit")


@functools.cache
def source_lines() -> dict[str, str]:
    """`kind/why` of every event that the engine emits -> file and line; `kind` alone where the reason is a variable.

    Places that emit the same are joined by " or ". Empty where the package came without its source.
    """
    places: dict[str, list[str]] = {}
    root = Path(__file__).parent
    for file in sorted(root.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "emit(" in text:
            name = f"engine/{file.relative_to(root).as_posix()}"
            for key, line in _emits(ast.parse(text)):
                places.setdefault(key, []).append(f"{name}:{line}")
    return {key: " or ".join(found) for key, found in places.items()}


def _emits(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in EMITTERS:
            for kind in _names(node.args[:1], "ev", EVENT_TYPES):
                whys = [Why[name].value for name in _names(node.args[1:], "Why", Why.__members__)]
                for key in [f"{kind}/{why}" for why in whys] or [kind]:
                    yield key, node.lineno


def _names(arguments: list[ast.expr], module: str, known: Container[str]) -> list[str]:
    """The names X of every `module.X` in the arguments that is known: two in `ev.A if resumed else ev.B`."""
    return [
        node.attr
        for argument in arguments
        for node in ast.walk(argument)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == module
        and node.attr in known
    ]
