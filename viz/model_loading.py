"""ModelLoading: another model, while the one that is there serves on.

    old engine   serves ............................................ | its requests are aborted
    a thread       reads config, weights, tokenizer, makes the pool  |
    new engine                                                       | serves, in a new run

For a while both are in memory. The other way round, a folder that cannot be loaded would have cost everyone the model
that worked. Where both do not fit, the message says what to do.
"""

import threading
from typing import TYPE_CHECKING

import msgspec

from pagelens.engine import Engine, EngineConfig
from pagelens.engine.errors import PagelensError

if TYPE_CHECKING:
    from pagelens.engine.engine_loop import EngineLoop


class LoadState(msgspec.Struct, frozen=True):
    """How far a load is. `share` of `stage` is done; `error` tells why it failed, `run` is the run that it began."""

    model: str
    stage: str
    share: float = 0.0
    error: str = ""
    run: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has succeeded or failed."""
        return bool(self.error or self.run)


class ModelLoading:
    """Loads into one loop, one model at a time. `state` is that of the last load, None before the first."""

    def __init__(self, loop: "EngineLoop") -> None:
        self.state: LoadState | None = None
        self._loop = loop
        self._lock = threading.Lock()

    def start(self, config: EngineConfig) -> None:
        """Begin to load; returns at once. Raises PagelensError if a load is under way."""
        with self._lock:
            if self.state is not None and not self.state.is_over:
                raise PagelensError(f"{_name(self.state.model)} is being loaded: wait until that is done")
            self.state = LoadState(config.model, "reading the config")
        threading.Thread(target=self._load, args=(config,), name="loading", daemon=True).start()

    def _load(self, config: EngineConfig) -> None:
        def progress(stage: str, share: float) -> None:
            self.state = LoadState(config.model, stage, share)

        try:
            engine = Engine(config, progress=progress)
            progress("waiting for the end of the step", 1.0)
            self._loop.replace_engine(engine)
        except PagelensError as error:
            self.state = LoadState(config.model, "failed", error=str(error))
        except Exception as error:  # what a device says when its memory is full is no error of ours
            why = f"{type(error).__name__}: {error}".strip(": ")
            remedy = "if both models do not fit into memory, restart with --model to load this one alone"
            self.state = LoadState(
                config.model, "failed", error=f"{_name(config.model)} cannot be loaded ({why}): {remedy}"
            )
        else:
            self.state = LoadState(config.model, "ready", 1.0, run=engine.log.header.run)


def _name(model: str) -> str:
    return model or "the embedded model"
