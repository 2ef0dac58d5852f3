"""Loading another model: the old one serves until the new one is there, and on if it never comes."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from scripted import scripted_engine

from pagelens.engine import Engine, EngineConfig, EngineLoop, PagelensError, SamplingParams
from pagelens.engine.models import loader
from pagelens.viz import model_loading
from pagelens.viz.access import Role, Visitor
from pagelens.viz.commands import Commands
from pagelens.viz.model_loading import LoadState, ModelLoading

INSTRUCTOR = Visitor("teacher", Role.INSTRUCTOR)


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    loop = EngineLoop(scripted_engine(16, 4)).start()
    yield loop
    loop.stop()


def load(commands: Commands, **fields: Any) -> LoadState:
    """Send the command and wait for the end of it."""
    body = msgspec.json.encode({"command": "load_model", **fields})
    assert commands.execute(body, INSTRUCTOR) == {}
    for _ in range(600):
        state = commands.loading.state
        assert state is not None
        if state.is_over:
            return state
        time.sleep(0.05)
    raise AssertionError(f"still loading: {state}")


def test_the_embedded_model_takes_over_from_a_script(loop: EngineLoop) -> None:
    commands = Commands(loop)
    before = loop.log.header.run
    state = load(commands, model="", kernel="torch", num_gpu_blocks_override=32)
    assert state.error == "" and state.run == loop.log.header.run != before
    assert loop.engine.loaded is not None and loop.log.header.num_blocks == 32 and loop.log.header.block_size == 16
    text = "".join(output.text for output in loop.stream("A hacker is", SamplingParams(max_tokens=8)))
    assert text.strip()
    assert loop.log.header.config["max_num_seqs"] == 8, "what the command does not name stays as it is"


def test_progress_is_told_in_stages(loop: EngineLoop) -> None:
    told: list[tuple[str, float]] = []

    class Told(ModelLoading):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "state" and value is not None:
                told.append((value.stage, value.share))
            super().__setattr__(name, value)

    loading = Told(loop)
    loading.start(EngineConfig(kernel="torch", num_gpu_blocks_override=8))
    while not (loading.state and loading.state.is_over):
        time.sleep(0.02)
    assert [*dict.fromkeys(stage for stage, _ in told)] == [
        "reading the config", "reading the weights", "waiting for the end of the step", "ready"
    ]  # fmt: skip
    shares = [share for stage, share in told if stage == "reading the weights"]
    assert len(shares) > 5 and shares == sorted(shares) and shares[-1] > 0.95


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "/no/such/folder"}, "there is no model folder '/no/such/folder'"),
        ({"model": "", "max_model_len": 5000}, "max_model_len is 5000"),
    ],
)
def test_a_load_that_fails_leaves_the_old_engine_serving(loop: EngineLoop, fields: Any, words: str) -> None:
    commands, before = Commands(loop), loop.engine
    state = load(commands, **fields)
    assert words in state.error and loop.engine is before
    assert len(list(loop.stream([1, 2, 3], SamplingParams(max_tokens=4)))) == 4
    assert not load(commands, model="", kernel="torch", num_gpu_blocks_override=8).error, "and another may be tried"


def test_a_hub_that_cannot_be_reached_is_said(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> str:
        raise OSError("no network")

    monkeypatch.setattr(loader, "snapshot_download", offline)
    state = load(Commands(loop), model="nobody/nothing")
    assert "'nobody/nothing' is no folder here and could not be fetched from the hub: no network" in state.error


def test_a_full_memory_is_said_with_a_remedy(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Engine:
        raise MemoryError("12 GiB asked for")

    monkeypatch.setattr(model_loading, "Engine", full)
    state = load(Commands(loop), model="big/model")
    assert "big/model cannot be loaded (MemoryError: 12 GiB asked for)" in state.error
    assert "restart with --model" in state.error


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "model"),
        ({"model": "", "block_size": 5}, "block_size is 5"),
        ({"model": "", "kernel": "cuda"}, "kernel is 'cuda'"),
        ({"model": "", "num_gpu_blocks_override": 0}, "num_gpu_blocks_override is 0"),
        ({"model": "", "trust_remote_code": True}, "trust_remote_code"),
    ],
)
def test_options_out_of_range_are_refused_at_once(loop: EngineLoop, fields: Any, words: str) -> None:
    commands = Commands(loop)
    with pytest.raises(PagelensError, match=words):
        commands.execute(msgspec.json.encode({"command": "load_model", **fields}), INSTRUCTOR)
    assert commands.loading.state is None


def test_one_load_at_a_time(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()
    real = model_loading.Engine

    def slow(*arguments: Any, **options: Any) -> Engine:
        may_go_on.wait(10)
        return real(*arguments, **options)

    monkeypatch.setattr(model_loading, "Engine", slow)
    loading = ModelLoading(loop)
    config = EngineConfig(kernel="torch", num_gpu_blocks_override=8)
    loading.start(config)
    assert len(list(loop.stream([1, 2, 3], SamplingParams(max_tokens=4)))) == 4, "the old one serves meanwhile"
    with pytest.raises(PagelensError, match="the embedded model is being loaded: wait"):
        loading.start(config)
    may_go_on.set()
    while not (loading.state and loading.state.is_over):
        time.sleep(0.02)
    assert loop.engine.loaded is not None
