"""KernelTracer: watches the attention launch of a layer for whoever asked, and tells it in one event.

    trace_kernel("A.0", layer 2, KV head 1)     noted; nothing else happens until A.0 is in a plan
                                        plan    ...
                                        launch  in layer 2 the kernel runs as ever, while its loads are recorded:
                                                KernelTraced
                                        commit  ...

Models and runner do not know that they are watched: the metadata that every layer is handed brings the watcher along.
Under Triton's interpreter the event says what was really read. Compiled kernels tell nobody, and nor does torch's: for
those the event says what the block table makes them read, and that it was taken from there.
"""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

from torch import Tensor

from pagelens.kernels.trace import recording, walks_read
from pagelens.kernels.walk import AttentionCall, ProgramWalk, walks_by_table

from . import events as ev
from .attention import Kernels
from .errors import RequestError
from .event_log import EventLog
from .events import Why
from .models.loader import LoadedModel
from .runner import Launch, ModelRunner, Runner

MOST_TILES = 1024
"""Tiles in one event; a long prompt in small tiles has more."""

TILES = (16, 32, 64, 128, 256, 512, 1024)


class Wanted(NamedTuple):
    """What somebody asked to see."""

    sequence: str
    layer: int
    kv_head: int


class KernelTracer:
    """Used on the engine's thread. Each wish is met once, by the next launch that its sequence is part of."""

    def __init__(self, loaded: LoadedModel | None, runner: Runner, log: EventLog) -> None:
        self._loaded = loaded
        self._runner = runner
        self._log = log
        self._wanted: dict[Wanted, int] = {}  # and the tile; 0: as the launch has it

    def want(self, wanted: Wanted, tile: int, unfinished: list[str]) -> None:
        """Note a wish. Raises RequestError if it can never be met."""
        if self._loaded is None:
            raise RequestError("a scripted engine runs no kernel, so there is nothing to trace: start it with a model")
        if wanted.sequence not in unfinished:
            raise RequestError(
                f"there is no unfinished sequence {wanted.sequence!r}; there are: {', '.join(unfinished) or 'none'}"
            )
        spec = self._loaded.spec
        for name, number in (("layer", spec.num_layers), ("kv_head", spec.num_kv_heads)):
            value = getattr(wanted, name)
            if not 0 <= value < number:
                raise RequestError(f"{name} is {value}, but the model has {number}: allowed is 0 to {number - 1}")
        if tile and tile not in TILES:
            raise RequestError(f"tile is {tile}, allowed is {', '.join(map(str, TILES))}, or 0: as the launch has it")
        self._wanted = {other: its for other, its in self._wanted.items() if other.sequence in unfinished}
        self._wanted[wanted] = tile

    def watch(self, launch: Launch, cause: int) -> None:
        """Before a launch: have its attention kernel watched, if somebody wants to know what it reads."""
        rows = {item.sequence.name: row for row, item in enumerate(launch.plan.scheduled)} if self._wanted else {}
        due = {wanted: tile for wanted, tile in self._wanted.items() if wanted.sequence in rows}
        if not due or launch.batch is None:
            return
        for wanted in due:
            del self._wanted[wanted]
        runner = cast(ModelRunner, self._runner)
        by_view: dict[int, list[Wanted]] = {}
        for wanted in due:
            by_view.setdefault(runner.cache.layer(wanted.layer).data_ptr(), []).append(wanted)

        def attend(kernels: Kernels, *arguments: Any, **options: Any) -> Tensor:
            call = AttentionCall(*arguments, **options)
            here = by_view.get(call.kv_layer.data_ptr(), [])
            if not here:
                return kernels.paged_attention(*arguments, **options)
            tile = max(due[wanted] for wanted in here)
            if call.config is not None and tile:
                call = replace(call, config=replace(call.config, tile=tile))
                options["config"] = call.config
            really = kernels.interpreted and call.query.device.type == "cpu"
            with (
                recording(kv_layer=call.kv_layer, block_tables=call.block_tables) if really else nullcontext() as notes
            ):
                out = kernels.paged_attention(*arguments, **options)
            for wanted in here:
                row = rows[wanted.sequence]
                if notes is not None:
                    walks = walks_read(notes, call, row, wanted.kv_head)
                else:
                    walks = walks_by_table(call, row, wanted.kv_head, tile)
                item = launch.plan.scheduled[row]
                self._log.emit(
                    ev.KernelTraced,
                    Why.USER_TRACE,
                    cause,
                    **wanted._asdict(),
                    kernel=kernels.name,
                    taken_from="interpreter" if really else "block_table",
                    grid=launch.grid,
                    blocks=sorted({block for walk in walks for block in walk.blocks()}),
                    programs=_newest(walks),
                    start=item.start,
                    num_tokens=item.num_tokens,
                    **_shape(call, tile),
                )
            return out

        launch.batch.metadata.watch = lambda kernels: partial(attend, kernels)


def _shape(call: AttentionCall, tile: int) -> dict[str, int]:
    """The tiles of the launch, as the event has them."""
    config = call.config
    own = {"block_m": config.block_m, "block_q": config.block_q, "tile": config.tile} if config else {"tile": tile}
    return own | {"group": call.group, "sliding_window": call.sliding_window or 0}


def _newest(walks: list[ProgramWalk]) -> list[ProgramWalk]:
    """The last programs, as many as have `MOST_TILES` tiles together; one at least."""
    tiles, kept = 0, 0
    for walk in reversed(walks):
        tiles += len(walk.tiles)
        if kept and tiles > MOST_TILES:
            break
        kept += 1
    return walks[len(walks) - kept :]
