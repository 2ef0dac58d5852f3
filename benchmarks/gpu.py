"""All that a GPU is needed for, in under 8 minutes on one card: is the kernel right, how fast are it and the engine?

    python benchmarks/gpu.py              needs a CUDA device
    python benchmarks/gpu.py --dry-run    the same path without one, tiny and interpreted: its times mean nothing

The end says whether everything was equal that must be; the exit code says it too. What was measured on which card is
written down in docs/benchmarks.md.
"""

import argparse
import datetime
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

BUDGET_SECONDS = 450


def main() -> int:
    """Print everything; 0 if all that must be equal is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU: checks, but measures nothing")
    dry = parser.parse_args().dry_run
    if not dry and not torch.cuda.is_available():
        print("there is no CUDA device here: give --dry-run to check the script itself", file=sys.stderr)
        return 2
    started = time.perf_counter()
    device = torch.device("cpu" if dry else "cuda")
    if dry:  # before anything imports triton
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["TRITON_INTERPRET"] = "1"

    import gpu_kernels
    import gpu_serving
    from machine import print_machine

    print_machine()
    card = "none, a dry run: the times below mean nothing" if dry else torch.cuda.get_device_name()
    print(f"card      {card}\ndate      {datetime.date.today()}")

    print("\nThe kernel against the oracle")
    shapes = gpu_kernels.DRY_SHAPES if dry else gpu_kernels.SHAPES
    dtypes = [torch.float32, torch.float16] + ([] if dry else [torch.bfloat16])
    small = [*gpu_kernels.DRY_SHAPES, *([] if dry else gpu_kernels.SHAPES[1:3])]
    right = [gpu_kernels.check_oracle(small, dtypes, device)]
    if dry:
        print("  torch.bfloat16  skipped: the interpreter multiplies it wrongly")

    with tempfile.TemporaryDirectory() as folder:
        print("\nThe engine against transformers.generate, greedy")
        tiny = gpu_serving.write_checkpoint(Path(folder) / "tiny", gpu_serving.TINY, torch.float32, device)
        right.append(gpu_serving.check_transformers(tiny, "triton", torch.float32, device))
        right.append(gpu_serving.check_transformers(tiny, "torch" if dry else "triton", torch.bfloat16, device))

        print("\nThe kernel over its floor, beside dense attention")
        timed = torch.float32 if dry else torch.bfloat16
        right.append(gpu_kernels.print_times(shapes, timed, device, dry))

        print("\nThe engine beside transformers, tokens generated per second")
        model, count, lengths = (gpu_serving.TINY, 6, (5, 20)) if dry else (gpu_serving.QWEN3, 256, (100, 1024))
        checkpoint = gpu_serving.write_checkpoint(Path(folder) / "model", model, timed, device)
        jobs = gpu_serving.draw_jobs(count, *lengths, model["vocab_size"])
        right.append(gpu_serving.print_rates(checkpoint, jobs, started + BUDGET_SECONDS, device, dry))

    print(f"\n{time.perf_counter() - started:.0f} s; " + ("all equal" if all(right) else "NOT EQUAL: see above"))
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
