"""The frame: what imports what, what works without triton, and that threads do not disturb each other's kernels."""

import ast
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HIDE_TRITON = """
import importlib.abc, sys
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError("No module named 'triton'", name="triton")
sys.meta_path.insert(0, Hide())
"""


def python(code: str, **environment: str) -> str:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("package", "forbidden"), [("engine", {"viz"}), ("kernels", {"viz", "engine"})])
def test_imports_point_one_way(package: str, forbidden: set[str]) -> None:
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                assert not {f"pagelens.{part}" for part in forbidden} & {".".join(name.split(".")[:2])}, (file, name)


def test_the_core_path_can_be_read_in_an_afternoon() -> None:
    core = ["scheduler", "step_plan", "preemption", "policies", "block_pool", "block_table", "kv_cache_manager"]
    core += ["prefix_cache", "runner"]
    files = [ROOT / "engine" / f"{name}.py" for name in core] + [ROOT / "kernels" / "paged_attention.py"]
    assert sum(len(file.read_text().splitlines()) for file in files) <= 1500


GENERATE = """
from pagelens.engine import LLM, SamplingParams
from pagelens.engine.attention import kernel_to_watch
kernel, why_not = kernel_to_watch()
llm = LLM(kernel=kernel)
text = llm.generate("A hacker is", SamplingParams(max_tokens=8, temperature=0))[0].outputs[0].text
print(llm.engine.kernel["name"], "|", why_not or llm.engine.kernel["why"], "|", text)
"""


def test_without_triton_the_engine_generates_and_says_which_kernel_runs_and_why() -> None:
    kernel, why, text = python(HIDE_TRITON + GENERATE).split("|")
    assert kernel.strip() == "numba"
    assert "triton is not installed" in why
    assert len(text.split()) >= 3


@pytest.mark.triton
def test_who_wants_to_watch_gets_the_interpreted_kernel_without_setting_anything() -> None:
    kernel, why, text = python(GENERATE).split("|")
    assert kernel.strip() == "triton" and "interpreter" in why
    assert python(HIDE_TRITON + GENERATE).split("|")[2] == text, "the same tokens on both kernels"


@pytest.mark.triton
def test_triton_imported_too_early_falls_back_and_names_the_remedy() -> None:
    kernel, why, _ = python("import triton\n" + GENERATE).split("|")
    assert kernel.strip() == "numba"
    assert "triton was imported without TRITON_INTERPRET=1" in why and "set TRITON_INTERPRET=1 before" in why
    refused = """
import triton
from pagelens.engine import LLM, ConfigError
try:
    LLM(kernel="triton")
except ConfigError as error:
    print(error)
"""
    assert 'kernel="triton" cannot run' in python(refused)


@pytest.mark.triton
def test_two_interpreted_engines_on_two_threads_run_forty_launches() -> None:
    from pagelens.engine import LLM, SamplingParams

    texts: dict[int, list[str]] = {}

    def run(number: int) -> None:
        llm = LLM(kernel="triton", num_gpu_blocks_override=32)
        params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)  # 10 steps of 2 layers: 20 launches
        texts[number] = [answer.text for result in llm.generate(["A hacker is"], params) for answer in result.outputs]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts[0] == texts[1] and texts[0][0]
