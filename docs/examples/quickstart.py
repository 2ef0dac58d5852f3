"""Generate two texts with the embedded model."""

from pagelens.engine import LLM, SamplingParams

llm = LLM()
params = SamplingParams(max_tokens=24, temperature=0)
for result in llm.generate(["A hacker is", "When a program"], params, progress=False):
    answer = result.outputs[0]
    print(result.prompt + answer.text)
    print(f"({len(answer.token_ids)} tokens, finish_reason {answer.finish_reason})")
