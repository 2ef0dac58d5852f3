"""Tiny random checkpoints, what `transformers` generates with them, and a loop that serves requests phase by phase.

A reference is computed once per checkpoint and prompt; every configuration of the engine is compared with it.
"""

import json
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from pagelens.engine import Engine, EngineConfig, SamplingParams
from pagelens.engine.events import Event
from pagelens.engine.integrity import check_integrity, check_map
from pagelens.engine.memory_map import MemoryMap
from pagelens.engine.models.loader import EMBEDDED_MODEL
from pagelens.engine.request import Request
from pagelens.engine.scheduler import StepPlan

VOCAB_SIZE = 199
NUM_NEW_TOKENS = 8
NEAR_TIE = 1e-3
"""Two logits nearer than this may change places when sums are taken in another order."""

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # at the usual 0.02 a random model repeats one token for ever, and hides every mistake
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

CONFIGS: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    # 2 query heads per KV head of size 16, embeddings tied, the rope scaling of Llama 3
    "llama": (
        LlamaConfig,
        {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "rope_parameters": LLAMA3_ROPE,
        },
    ),
    # 3, 32, untied
    "mistral": (
        MistralConfig,
        {"hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1, "sliding_window": None},
    ),
    # 1, 32, tied; a window shorter than most sequences and no multiple of a block
    "mistral-windowed": (
        MistralConfig,
        {
            "hidden_size": 96,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "sliding_window": 11,
            "tie_word_embeddings": True,
        },
    ),
    # 2, 32, untied; biases on Q, K and V
    "qwen2": (Qwen2Config, {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}),
    # 8, 24 (not 64 / 8, and no power of two), untied; heads of Q and K normalised
    "qwen3": (
        Qwen3Config,
        {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 24},
    ),
}


def _random_config(name: str, **changes: Any) -> PretrainedConfig:
    kind, shape = CONFIGS[name]
    return kind(**SMALL | shape | changes)


TEXTS = [
    "A hacker is a person who enjoys learning the details of a computer and how to stretch its limits, while most "
    "users prefer to learn only what they must. He will often write a program in one night, and it is said that the "
    "machine knows when he is in a hurry. The word was first used for people who build things with an axe, and later "
    "at a railway club, where a clever solution to a small problem was called a hack. To this day nobody agrees on "
    "what a good one is, but everybody knows one when it runs.",
    "When the system went down in the middle of the week, the old wizard looked at the light on the front panel and "
    "said that it was a bug in the cache. No one believed him. They read the manual, they changed the cable, and at "
    "last they asked the man who had written the code, and he had left the company long ago. So they went home, and "
    "in the morning the machine was up again, as if nothing had happened.",
]
"""What the embedded model is prompted with: two streams of English, for it has learnt nothing else."""


def _write_checkpoint(folder: Path, config: PretrainedConfig) -> None:
    """A random model, its biases and norms too: `transformers` leaves them at 0 and 1, where nobody would miss them."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.5)
            elif "norm" in name:
                parameter.normal_(1, 0.2)
    model.save_pretrained(folder)


@pytest.fixture
def write_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """`write_checkpoint(name, **changes)`: the folder of a new random checkpoint whose config is changed so."""

    def write(name: str, **changes: Any) -> Path:
        _write_checkpoint(tmp_path / name, _random_config(name, **changes))
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the random checkpoints, by the names in CONFIGS. Read-only: see `checkpoint_copy`."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name in CONFIGS:
        _write_checkpoint(root / name, _random_config(name))
    return {name: root / name for name in CONFIGS}


@pytest.fixture
def checkpoint_copy(checkpoints: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """`checkpoint_copy(name, **config)`: a copy of a checkpoint to break, with entries of its config.json replaced."""

    def copy(name: str = "llama", **config: Any) -> Path:
        folder = Path(shutil.copytree(checkpoints[name], tmp_path / name))
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
        return folder

    return copy


class Reference(NamedTuple):
    """What `transformers` generates greedily, and how far ahead of the second best each token's logit was."""

    token_ids: list[int]
    margins: list[float]

    @property
    def near_ties(self) -> list[int]:
        """The tokens that the reference was not sure of."""
        return [i for i, margin in enumerate(self.margins) if margin < NEAR_TIE]

    def parts_from(self, token_ids: list[int]) -> int:
        """The first token that is another one; the number of tokens if there is none."""
        pairs = zip(self.token_ids, token_ids, strict=True)
        return next((i for i, (own, other) in enumerate(pairs) if own != other), len(token_ids))

    def equals(self, token_ids: list[int]) -> bool:
        """Token for token, up to where the reference itself was not sure."""
        where = self.parts_from(token_ids)
        return where == len(token_ids) or where in self.near_ties


class Oracle:
    """One checkpoint in `transformers`, float32 on the CPU, and its answers so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None  # compare a fixed number of tokens, past every end
        self.model.config.eos_token_id = None
        self.streams = [self._stream(i) for i in range(len(TEXTS))]
        self.answers: dict[tuple[int, ...], Reference] = {}

    def _stream(self, number: int) -> list[int]:
        if self.folder == EMBEDDED_MODEL:
            return AutoTokenizer.from_pretrained(self.folder).encode(TEXTS[number])
        return random.Random(number).choices(range(VOCAB_SIZE), k=100)

    def prompt(self, length: int, stream: int = 0) -> list[int]:
        """The first `length` tokens of a stream: prompts of one stream share their prefixes."""
        assert length <= len(self.streams[stream])
        return self.streams[stream][:length]

    def __call__(self, prompt: list[int]) -> Reference:
        key = tuple(prompt)
        if key not in self.answers:
            with torch.no_grad():
                output = self.model.generate(
                    torch.tensor([prompt]),
                    max_new_tokens=NUM_NEW_TOKENS,
                    do_sample=False,
                    output_logits=True,
                    return_dict_in_generate=True,
                )
            best = torch.cat(output.logits).topk(2).values
            self.answers[key] = Reference(
                output.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()
            )
        return self.answers[key]


@pytest.fixture(scope="session")
def make_oracle() -> type[Oracle]:
    """The class `Oracle`, for a checkpoint of the test's own."""
    return Oracle


@pytest.fixture(scope="session")
def oracle(checkpoints: dict[str, Path]) -> Callable[[str], Oracle]:
    """`oracle(name)`: the `Oracle` of a random checkpoint, or of "embedded"; skips only where that is not there."""
    loaded: dict[str, Oracle] = {}

    def load(name: str) -> Oracle:
        if name == "embedded" and not EMBEDDED_MODEL.exists():
            pytest.skip(f"{EMBEDDED_MODEL} is not there yet")
        if name not in loaded:
            loaded[name] = Oracle(EMBEDDED_MODEL if name == "embedded" else checkpoints[name])
        return loaded[name]

    return load


@dataclass
class Served:
    """A finished run: its requests in the order of submission, and everything that was logged."""

    engine: Engine
    requests: list[Request]
    events: list[Event]
    totals: Counter[str] = field(default_factory=Counter)

    def outputs(self, request: int = 0) -> list[list[int]]:
        """The generated tokens of each sample of a request."""
        return [sequence.output_token_ids for sequence in self.requests[request].sequences]


def _serve(
    config: EngineConfig,
    prompts: list[list[int]],
    params: list[SamplingParams] | SamplingParams,
    *,
    mutate: Callable[[Engine, StepPlan], None] | None = None,
) -> Served:
    """Serve prompts, three at once and then one more with each step, so that prompts and single tokens mix in a batch.

    After every plan and every commit the invariants are checked and the picture drawn from the events is compared with
    the engine. `mutate(engine, plan)` is called between plan and launch, to do harm; then nothing is checked.
    """
    engine = Engine(config)
    picture = MemoryMap(num_blocks=engine.manager.pool.num_blocks, block_size=config.block_size)
    events: list[Event] = []

    def check() -> None:
        new = engine.log.read(len(events))
        assert new is not None, "the log's ring is too small for this run"
        events.extend(new)
        picture.fold(new)
        if mutate is None:
            check_integrity(engine)
            check_map(engine, picture)

    each = params if isinstance(params, list) else [params] * len(prompts)
    queue = list(zip(prompts, each, strict=True))
    requests: list[Request] = []
    while queue or engine.has_work:
        for prompt, its_params in queue[: 1 if requests else 3]:
            requests.append(engine.add_request(prompt, its_params))
            del queue[0]
        plan = engine.plan()
        check()
        if mutate is not None:
            mutate(engine, plan)
        samples = engine.launch(plan)
        engine.commit(plan, samples)
        check()
    if mutate is None:
        assert engine.manager.pool.num_free == engine.manager.pool.num_blocks, "every block was given back"
    return Served(engine, requests, events, Counter(type(event).__name__ for event in events))


@pytest.fixture(scope="session")
def serve() -> Callable[..., Served]:
    return _serve


Tally = defaultdict[str, Counter[str]]
TALLY = pytest.StashKey[Tally]()


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    """By checkpoint, over the session: tokens compared, near ties among them, sequences that parted at one."""
    return pytestconfig.stash.setdefault(TALLY, defaultdict(Counter))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    tally = config.stash.get(TALLY, {})
    if tally:
        terminalreporter.section("greedy equality with transformers")
    for name, counts in tally.items():
        terminalreporter.line(
            f"{name:17} {counts['compared']:6,} tokens compared, {counts['near_ties']} near ties among them, "
            f"{counts['parted']} sequences parted at one"
        )


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Matrices this small are slower on two threads, and far slower where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
