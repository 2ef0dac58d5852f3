"""Eight requests that between them show what a pool does: long and short, greedy and sampled, forked, with a common
prefix. For "send 8 mixed requests" on the page and for `pagelens record`.
"""

from pagelens.engine import SamplingParams

SYSTEM = (
    "The following is an entry of a dictionary of hacker slang. It explains one word in plain English, says where "
    "the word comes from, and gives an example of its use. "
)


MIXED_REQUESTS = [
    ("A hacker is a person who", SamplingParams(max_tokens=48, temperature=0.7, top_p=0.9, n=4, seed=1)),
    (SYSTEM + "The word is: kluge.", SamplingParams(max_tokens=40, temperature=0.0)),
    (SYSTEM + "The word is: foo.", SamplingParams(max_tokens=24, temperature=0.7, top_p=0.9, seed=2)),
    ("When a program", SamplingParams(max_tokens=80, temperature=0.7, top_p=0.9, seed=3)),
    ("The term is often used", SamplingParams(max_tokens=16, temperature=0.0)),
    (SYSTEM + "The word is: daemon.", SamplingParams(max_tokens=56, temperature=0.7, top_p=0.9, seed=4)),
    ("In the early days of computing,", SamplingParams(max_tokens=96, temperature=0.7, top_p=0.9, seed=5)),
    ("Why do programmers", SamplingParams(max_tokens=32, temperature=0.7, top_p=0.9, n=2, seed=6)),
]
"""(prompt, parameters), in the order to be submitted."""
