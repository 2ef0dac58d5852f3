"""The server that live_view.py measures: a real scheduler and pool, scripted tokens, a launch that only takes time.

    python benchmarks/live_view_server.py PORT BLOCKS SEQUENCES SECONDS_PER_LAUNCH

It never runs out of work: whoever finishes is followed by a new request, some of them samples of one prompt.
"""

import random
import sys
import threading
import time

import uvicorn

from pagelens.engine import Engine, EngineConfig, EngineLoop, SamplingParams
from pagelens.engine.output_processor import SequenceOutput
from pagelens.engine.request import Sequence
from pagelens.engine.runner import Launch, ScriptedRunner
from pagelens.engine.sampler import SequenceResult
from pagelens.viz.app import PageServer, build_app


class SlowRunner(ScriptedRunner):
    """A launch takes `seconds`, as on a device: the processor is free meanwhile."""

    def __init__(self, seconds: float) -> None:
        super().__init__(next_token)
        self.seconds = seconds

    def execute(self, launch: Launch) -> list[SequenceResult]:
        """Wait, then ask the script."""
        time.sleep(self.seconds)
        return super().execute(launch)


def next_token(sequence: Sequence, sample_index: int) -> int:
    """Any token."""
    return (7919 * sequence.num_tokens + sample_index) % 50_000


def endless_work(loop: EngineLoop, sequences: int) -> None:
    """Keep about `sequences` sequences running."""
    generator = random.Random(0)
    finished: list[bool] = []
    wanted = threading.Semaphore(sequences // 2)

    def ended(output: SequenceOutput) -> None:
        if output.sequence.request.is_finished and output.finish_reason is not None:
            finished.append(True)
            wanted.release()

    while True:
        wanted.acquire()
        prompt = [generator.randrange(50_000) for _ in range(generator.randint(100, 1500))]
        params = SamplingParams(max_tokens=generator.randint(50, 800), n=generator.choice((1, 1, 3)), temperature=1)
        loop.submit(prompt, params, ended)


def main() -> None:
    """Serve until killed."""
    port, blocks, sequences, seconds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    config = EngineConfig(
        num_gpu_blocks_override=blocks,
        max_model_len=4096,
        max_num_seqs=sequences,
        max_num_batched_tokens=max(512, 4 * sequences),
    )
    loop = EngineLoop(Engine(config, runner=SlowRunner(seconds))).start()
    threading.Thread(target=endless_work, args=(loop, sequences), daemon=True).start()
    app = build_app(loop)

    @app.get("/benchmark")
    def state() -> dict[str, float]:
        log = loop.log
        began = time.time() - (time.perf_counter_ns() - log._started) / 1e9
        steps = log.snapshot().totals.get("StepCommitted", 0)
        return {"began": began, "steps": steps, "events": log.next_seq, "cpu": time.process_time(), "now": time.time()}

    # The page's own route is a catch-all, and routes match in order.
    app.router.routes.insert(0, app.router.routes.pop())
    PageServer(uvicorn.Config(app, port=port, log_level="error")).run()


if __name__ == "__main__":
    main()
