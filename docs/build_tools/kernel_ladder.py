"""What the pages of the kernel ladder show: sources, counted tables, and walks that the interpreter really took.

A page names a step as `one_head` (see STEPS in tutorials/kernels/ladder.py).
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pagelens.kernels.launch import LaunchConfig
from pagelens.kernels.trace import Recording, recording, walks_read
from pagelens.kernels.walk import AttentionCall

sys.path.insert(0, str(Path(__file__).parents[2] / "tutorials" / "kernels"))

import ladder
from batches import random_call

ROOT = Path(__file__).parents[2]

DECODE = [(13, 1), (6, 1), (30, 1)]
MIXED = [(12, 12), (6, 1), (30, 5)]
EXAMPLES = {
    "one_head": random_call(DECODE),
    "grouped_heads": replace(random_call(DECODE), config=LaunchConfig(16, 8, tile=8)),
    "any_query_length": replace(random_call(MIXED), config=LaunchConfig(8, 4, tile=8)),
    "split_context": replace(random_call([(60, 1), (13, 1)]), config=LaunchConfig(2, 1, tile=8, num_splits=4)),
    "engine": replace(random_call(MIXED), config=LaunchConfig(8, 4, tile=8), sliding_window=6),
}
"""What each step is watched doing: sequences of (context, query tokens), in tiles small enough to step through."""


def source(name: str) -> str:
    """The whole file of a step, in letters small enough for its widest line."""
    path = ladder.STEPS[name].source
    text = (ROOT / path).read_text(encoding="utf-8").rstrip()
    return f'<div class="pl-source" markdown>\n\n```python title="{path}"\n{text}\n```\n\n</div>'


def counts(name: str = "") -> str:
    """For each batch what every step does, or only this step and the one before."""
    shown = slice(None)
    if name:
        number = list(ladder.STEPS).index(name)
        shown = slice(max(0, number - 1), number + 1)
    parts = []
    for batch, shape in ladder.BATCHES.items():
        *steps, least = ladder.table_rows(shape)
        lines = [(batch, *ladder.COLUMNS[1:]), ("---", *["--:"] * (len(least) - 1)), *steps[shown], least]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


def tiles() -> str:
    """What `choose_launch` says for each batch on three GPUs."""
    lines = ["| Batch | GPU | rows | query tokens | keys a tile | splits | warps | stages |", f"|---|---|{'--:|' * 6}"]
    for batch, shape in ladder.BATCHES.items():
        for capability, gpu in ((75, "sm_75 (T4)"), (89, "sm_89 (RTX 40)"), (90, "sm_90 (H100)")):
            c = ladder.engine_tiles(shape, capability)
            cells = (batch, gpu, c.block_m, c.block_q, c.tile, c.num_splits, c.num_warps, c.num_stages)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def walk(name: str) -> str:
    """A figure of a launch of this step, program by program and tile by tile: docs/javascripts/kernel_ladder.js."""
    data = json.dumps(launch(name), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        f'<div class="pagelens ladder" aria-label="what the programs of {name} load">\n'
        f'<div class="ladder-view"></div>\n<script type="application/json">{data}</script>\n'
        '<script src="../javascripts/kernel_ladder.js" defer></script>\n</div>'
    )


def launch(name: str) -> dict[str, Any]:
    """What the interpreter saw in a launch of EXAMPLES, as the figure takes it."""
    call = EXAMPLES[name]
    step = ladder.STEPS[name]
    with recording(kv_layer=call.kv_layer, block_tables=call.block_tables) as notes:
        step.attend(call)
    by_head = name == "one_head"
    read_as = replace(call, config=None) if step.decode_only else call
    programs = []
    for row in range(len(call.seq_lens)):
        for kv_head in range(call.kv_layer.shape[2]):
            for found in walks_read(notes, read_as, row, kv_head):
                heads = [found.program[1]] if by_head else [kv_head * call.group + i for i in range(call.group)]
                programs.append({"sequence": row, "kv_head": kv_head, "heads": heads, **asdict(found)})
    programs.sort(key=lambda each: each["program"])
    return {
        "grid": _grid(name, call),
        "across": "sequence" if step.decode_only else "tile",
        "down": "head" if by_head else "KV head",
        "block_size": call.block_size,
        "sequences": [
            {
                "name": "ABC"[row],
                "context": int(call.seq_lens[row]),
                "queries": int(call.query_start_loc[row + 1] - call.query_start_loc[row]),
                "table": call.block_tables[row, : -(-int(call.seq_lens[row]) // call.block_size)].tolist(),
            }
            for row in range(len(call.seq_lens))
        ],
        "programs": programs,
        "keys": _keys_loaded(notes),
        "keys_there": int(call.seq_lens.sum()) * call.kv_layer.shape[2],
    }


def _grid(name: str, call: AttentionCall) -> list[int]:
    num_tokens, num_heads, _ = call.query.shape
    num_seqs, num_kv_heads = len(call.seq_lens), call.kv_layer.shape[2]
    if ladder.STEPS[name].decode_only:
        return [num_seqs, num_heads if name == "one_head" else num_kv_heads, 1]
    assert call.config
    return list(call.config.grid(num_tokens, num_seqs, num_kv_heads))


def _keys_loaded(notes: Recording) -> int:
    """Keys that all programs together loaded, each as often as it was."""
    loads = [access for accesses in notes.accesses.values() for access in accesses if access.tensor == "kv_layer"]
    return sum(int((access.lanes[:, 1] == 0).sum()) for access in loads)
