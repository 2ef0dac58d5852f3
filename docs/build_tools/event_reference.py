"""The event reference: made from the types, from `MemoryMap`'s reducers, and from real runs."""

import ast
import inspect
import logging
import re
import textwrap
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec

from pagelens.engine import events as ev
from pagelens.engine import kvtrace, memory_map

from . import sample_runs
from .event_table import own_fields

log = logging.getLogger("mkdocs.hooks.pagelens")

ENGINE = Path(__file__).parents[2] / "engine"
LINE = 86

REASONS = {
    "SUBMITTED": "A user sent the request.",
    "INVALID": "It can never be served; the message says why.",
    "USER_ABORT": "Its user withdrew the request.",
    "FITS": "Its blocks fit beside those of the running sequences.",
    "PREFIX_HIT": "Sealed blocks hold the beginning of its tokens.",
    "PREFIX_MISS": "No sealed block holds the beginning of its tokens.",
    "PARALLEL_SAMPLING": "The request asked for n samples, and the prompt is done.",
    "BEAM_SPLIT": "Two of the best continuations come from the same beam.",
    "NEXT_TOKEN": "One token is missing, the newest.",
    "PREFILL": "The rest of the prompt is computed.",
    "PREFILL_CHUNK": "A part of the missing tokens is computed; more follow in a later step.",
    "RECOMPUTE": "More than one token is missing beyond the prompt: a preemption threw them away.",
    "TABLE_GROWS": "The next tokens need a further block.",
    "SHARED_BLOCK": "The next token goes into a block that other tables hold too.",
    "BLOCK_FULL": "With this step's tokens the block is full.",
    "STEP_FAILED": "The model or a kernel raised an error.",
    "LEAST_RECENTLY_USED": "Of the cached blocks it was released first.",
    "POLICY": "A policy of the user's chose it.",
    "SEQUENCE_FINISHED": "The sequence ended.",
    "PREEMPTED": "The request gave its blocks back for another.",
    "COPIED_AWAY": "The table now points to the copy.",
    "SWAPPED_OUT": "The table now points to the host pool.",
    "SWAPPED_IN": "A block of the host pool comes back.",
    "CACHE_RESET": "Somebody had the prefix cache forget everything.",
    "OUT_OF_BLOCKS": "A block is needed and none is free.",
    "NOTHING_WAITS": "Every request is running.",
    "WAITS_FOR_BLOCKS": "The first waiting request does not fit: needs, free, watermark and promised say by how much.",
    "WAITS_FOR_SEQUENCE_SLOT": "max_num_seqs sequences are running.",
    "WAITS_FOR_TOKEN_BUDGET": "The running sequences use all of max_num_batched_tokens.",
    "WAITS_AFTER_PREEMPTION": "Nothing is admitted in a plan in which something was preempted.",
    "WAITS_FOR_BATCH": "Static batching, for comparison only: the batch before has not ended.",
    "SCHEDULED": "The step goes on as it was planned.",
    "MODEL_OUTPUT": "The model computed it.",
    "END_OF_SEQUENCE": "The model, or a stop token, ended the text.",
    "STOP_STRING": "The text contains one of the request's stop strings.",
    "BEAM_DROPPED": "Other beams of its request score better.",
    "BEAM_SEARCH_OVER": "The search has its answers.",
    "MAX_TOKENS": "The sequence has as many tokens as its request allows.",
    "MAX_MODEL_LEN": "The sequence is as long as the engine allows.",
    "USER_HALT": "Somebody halted the engine.",
    "USER_STEP": "Somebody asked for one step.",
    "USER_PHASE": "Somebody asked for one phase of a step.",
    "USER_BREAKPOINT": "A breakpoint matched the event named as cause.",
    "USER_RUN": "Somebody let the engine run on.",
    "USER_TRACE": "Somebody asked what the kernel reads.",
}
"""One sentence for each Why; the build warns if one is missing."""


def event_kinds() -> str:
    """One section for each kind: what it means, its fields, a line of a real run, what MemoryMap does with it."""
    samples: dict[str, ev.Event] = {}
    for event in _sample_events():
        samples.setdefault(type(event).__name__, event)
    parts = []
    for name, kind in ev.EVENT_TYPES.items():
        if name not in samples:
            log.warning("no sample run emits %s", name)
            continue
        docstring = re.sub(r"\s+", " ", inspect.getdoc(kind) or "")
        parts += [f"### {name}", docstring, _emitters(name), _field_table(kind)]
        parts += ["```json", _wrapped_json(samples[name]), "```", _reducer(kind)]
    return "\n\n".join(parts).replace("```json\n\n", "```json\n").replace("\n\n```\n\n???", "\n```\n\n???")


def event_fields() -> str:
    """The fields of every event."""
    return _table_of(ev.Event, list(ev.Event.__struct_fields__))


def event_phases() -> str:
    """The values of Phase and BlockState."""
    return "\n".join(
        f"- `{enum.__name__}`: " + ", ".join(f"`{member.value}`" for member in enum) + f". {inspect.getdoc(enum)}"
        for enum in (ev.Phase, ev.BlockState)
    )


def event_reasons() -> str:
    """A table of every Why, its meaning, and the kinds on which it occurs in the source and in the sample runs."""
    for name in set(ev.Why.__members__) - set(REASONS):
        log.warning("docs/build_tools/event_reference.py has no sentence for Why.%s", name)
    kinds = _kinds_by_reason()
    rows = ["| why | Meaning | On |", "|---|---|---|"]
    for why in ev.Why:
        if not kinds[why.name]:
            log.warning("neither the source nor a sample run shows on which events %s occurs", why)
        on = ", ".join(f"[{kind}](#{kind.lower()})" for kind in sorted(kinds[why.name]))
        rows.append(f"| `{why}` | {REASONS.get(why.name, '')} | {on} |")
    return "\n".join(rows)


def trace_lines() -> str:
    """The beginning of a .kvtrace: its header, shortened, and two events."""
    engine = sample_runs.scripted_engine(8)
    engine.add_request([21, 22, 23], sample_runs.SamplingParams(max_tokens=1))
    events = sample_runs.run(engine)
    header = {name: _json(value) for name, value in msgspec.to_builtins(engine.log.header).items()}
    lines = [_wrapped(header | {"config": "{…}", "kinds": "{…}", "sources": "{…}"}), *map(_wrapped_json, events[:2])]
    return "```json\n" + "\n".join(lines) + "\n```"


PASSED_ON = {"STOP_STRING": "SequenceFinished", "USER_PHASE": "EngineContinued", "USER_BREAKPOINT": "EngineHalted"}
"""Reasons that reach `emit` through a variable, and that no sample run has."""


@cache
def _sample_events() -> list[ev.Event]:
    return [
        *sample_runs.every_kind(),
        *sample_runs.swapping_beams(),
        *sample_runs.every_end_and_wait(),
        *sample_runs.traced_run(),
    ]


def _field_table(kind: type[ev.Event]) -> str:
    return _table_of(kind, own_fields(kind)) if own_fields(kind) else ""


def _table_of(kind: type[ev.Event], names: list[str]) -> str:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    rows = ["| Field | Type | Default |", "|---|---|---|"]
    for name in names:
        field = fields[name]
        default = "" if field.required else f"`{_json(_default(field))}`"
        rows.append(f"| `{name}` | `{_type_name(field.type)}` | {default} |")
    return "\n".join(rows)


def _default(field: Any) -> object:
    return field.default_factory() if field.default is msgspec.NODEFAULT else field.default


def _type_name(type_: Any) -> str:
    arguments = ", ".join(_type_name(argument) for argument in get_args(type_))
    return f"{type_.__name__}[{arguments}]" if arguments else str(type_.__name__)


def _json(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return msgspec.json.encode(value).decode()


def _wrapped_json(event: ev.Event) -> str:
    return _wrapped({name: _json(value) for name, value in msgspec.json.decode(kvtrace.encode_event(event)).items()})


def _wrapped(fields: dict[str, str]) -> str:
    """One JSON object, broken between fields where a line gets too long."""
    lines = ["{"]
    for name, value in fields.items():
        field = f'"{name}": {value}, '
        if len(lines[-1]) + len(field) > LINE and len(lines[-1]) > 4:
            lines.append("    ")
        lines[-1] += field
    return "\n".join(line.rstrip() for line in lines).removesuffix(",") + "}"


def _emitters(name: str) -> str:
    files = [path for path in sorted(ENGINE.glob("*.py")) if re.search(rf"\bev\.{name}\b", path.read_text())]
    emitting = [f"`engine/{path.name}`" for path in files if path.stem != "memory_map"]
    return f"Emitted by {', '.join(emitting)}."


def _reducer(kind: type[ev.Event]) -> str:
    reducer = memory_map._REDUCERS.get(kind)
    if reducer is None:
        return '??? quote "What the map does with it"\n\n    Nothing but count it.'
    source = textwrap.indent(textwrap.dedent(inspect.getsource(reducer)).rstrip(), "    ")
    return f'??? quote "What the map does with it"\n\n    ```python\n{source}\n    ```'


def _kinds_by_reason() -> dict[str, set[str]]:
    """Which kinds carry a Why: read off the calls of `emit` in the source, and off the sample runs."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for path in ENGINE.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "emit" and len(call.args) > 1:
                named = {node.attr for node in ast.walk(call.args[1]) if _is_member_of(node, "Why")}
                for kind in {node.attr for node in ast.walk(call.args[0]) if _is_member_of(node, "ev")}:
                    for why in named:
                        kinds[why].add(kind)
    for event in _sample_events():
        kinds[ev.Why(event.why).name].add(type(event).__name__)
    for why, kind in PASSED_ON.items():
        kinds[why].add(kind)
    return kinds


def _is_member_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
