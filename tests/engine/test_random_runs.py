"""Random requests, steps, aborts and failures against all invariants, on engines of every small shape.

Every plan is carried out on a shadow array (`ShadowRunner`), so a wrong table, a lost copy or a stale cache entry shows
up as a sequence that does not find its own tokens again; and after every plan and commit the picture rebuilt from the
events is compared with the engine.
"""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scripted import ShadowRunner, scripted_engine

from pagelens.engine import RequestError, SamplingParams
from pagelens.engine.integrity import check_integrity, check_map
from pagelens.engine.memory_map import MemoryMap

fired: Counter[str] = Counter()


class RandomRun(RuleBasedStateMachine):
    """One engine, driven in any order that its interface allows."""

    @initialize(
        num_blocks=st.integers(3, 24),
        block_size=st.sampled_from([1, 2, 4, 8]),
        budget=st.sampled_from([4, 8, 64]),
        caching=st.booleans(),
        host_blocks=st.sampled_from([0, 3, 30]),
        seed=st.integers(0, 99),
    )
    def build(self, num_blocks: int, block_size: int, budget: int, caching: bool, host_blocks: int, seed: int) -> None:
        self.runner = ShadowRunner(num_blocks, block_size, seed, host_blocks)
        self.engine = scripted_engine(
            num_blocks,
            block_size,
            self.runner,
            host_blocks,
            max_num_seqs=4,
            max_num_batched_tokens=budget,
            enable_prefix_caching=caching,
            max_model_len=64,
        )
        self.picture = MemoryMap(num_blocks=num_blocks, block_size=block_size)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 24),
        n=st.integers(1, 4),
        beams=st.booleans(),
    )
    def submit(self, prompt: list[int], max_tokens: int, n: int, beams: bool) -> None:
        fired["rules"] += 1
        if beams and n > 1:
            params = SamplingParams(max_tokens=max_tokens, beam_width=n, stop_token_ids=(7, 8), early_stopping=n == 2)
        else:
            params = SamplingParams(max_tokens=max_tokens, temperature=0, n=n)
        try:
            self.engine.add_request(prompt, params)
        except RequestError as error:
            assert "blocks" in str(error)

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        fired["rules"] += 1
        for _ in range(times if self.engine.has_work else 0):
            plan = self.engine.plan()
            self.check()
            samples = self.engine.launch(plan)
            self.engine.commit(plan, samples)
            self.check()

    @rule()
    def step_fails(self) -> None:
        fired["rules"] += 1
        self.runner.fail_next = True
        self.engine.step()
        self.runner.fail_next = False

    @rule(which=st.integers(0, 20))
    def abort(self, which: int) -> None:
        fired["rules"] += 1
        if self.engine.requests:
            names = sorted(self.engine.requests)
            self.engine.abort(names[which % len(names)])

    @rule()
    def reset(self) -> None:
        self.engine.reset_prefix_cache()
        fired["rules"] += 1

    @invariant()
    def check(self) -> None:
        check_integrity(self.engine)
        events = self.engine.log.read(self.picture.seq + 1)
        assert events is not None
        check_map(self.engine, self.picture.fold(events))

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.engine.has_work:
                break
            self.engine.step()
        assert not self.engine.has_work, "the engine stopped making progress"
        self.check()
        assert self.engine.manager.pool.num_free == self.engine.manager.pool.num_blocks
        assert self.engine.manager.host_pool.num_free == self.engine.manager.host_pool.num_blocks
        assert not self.engine.requests and not self.engine.outputs._texts
        fired.update(self.picture.totals)


RandomRun.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestRandomRun = RandomRun.TestCase


def test_every_mechanism_fired() -> None:
    """Runs after the machine above: its random runs must have met everything that can happen."""
    if not fired:
        RandomRun.TestCase("runTest").runTest()
    expected = {"BlockCopied", "BlockEvicted", "BlockShared", "RequestPreempted", "SequenceResumed", "SequenceForked"}
    expected |= {"BlockUnsealed", "StepFailed", "RequestAborted", "RequestRejected"}
    expected |= {"BlocksSwappedOut", "BlocksSwappedIn", "HostBlocksFreed"}
    assert not {kind for kind in expected if fired[kind] == 0}
    assert fired["rules"] >= 5000
    print(f"{fired['rules']} rules")
