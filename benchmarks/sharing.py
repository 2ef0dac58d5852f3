"""Blocks that samples and beams of one prompt save by sharing, beside the paper's range.

    python benchmarks/sharing.py

Eight prompts of 150 tokens, 100 new tokens each, the embedded model. Saved: block table entries that need no block of
their own, over all entries, as a mean over the steps (PagedAttention paper, SOSP 2023, section 6.3, figure 15).
"""

from machine import print_machine

from pagelens.engine import LLM, SamplingParams
from pagelens.engine.run_stats import RunStats

PAPER = {
    "samples": "6.1-9.8 % (Alpaca), 16.2-30.5 % (ShareGPT)",
    "beams": "37.6-55.2 % (Alpaca), 44.3-66.3 % (ShareGPT)",
}
WORDS = "the hacker wrote a program that could be used by every user of the old machine and its terminal "


def saved(params: SamplingParams) -> list[float]:
    """Mean share saved, for each of the eight requests."""
    llm = LLM(kernel="torch", log_events=True, enable_prefix_caching=False, num_gpu_blocks_override=1024)
    prompts = [llm.engine.tokenize(f"{number} " + WORDS * 20)[:150] for number in range(8)]
    stats = RunStats(llm.engine.log.header)
    picture = llm.engine.log.snapshot()
    for prompt in prompts:
        llm.engine.add_request(prompt, params)
    while llm.engine.has_work:
        llm.engine.step()
        for event in llm.engine.log.read(picture.seq + 1) or []:
            picture.apply(event)
            stats.apply(event, picture)
    return [sharing.mean for sharing in stats.sharing.values()]


def main() -> None:
    print_machine()
    for kind in ("samples", "beams"):
        for width in (2, 4, 6):
            options = {"n": width} if kind == "samples" else {"beam_width": width}
            shares = saved(SamplingParams(max_tokens=100, ignore_eos=True, **options))
            low, high, mean = min(shares), max(shares), sum(shares) / len(shares)
            print(f"{width} {kind:8} saved {mean:.1%} (single requests {low:.1%} to {high:.1%})   paper: {PAPER[kind]}")


if __name__ == "__main__":
    main()
