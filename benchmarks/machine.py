"""What a figure was measured on, and a warning when it was not measured alone."""

import os
import platform
import sys
import time

import torch


def busy_cores(seconds: float = 1.0) -> float:
    """Cores that others kept busy during the last moment (Linux; 0 elsewhere)."""
    try:
        before, after = _cpu_times(), (time.sleep(seconds), _cpu_times())[1]
    except FileNotFoundError:
        return 0.0
    idle = after[1] - before[1]
    total = after[0] - before[0]
    return (os.cpu_count() or 1) * (1 - idle / total) if total else 0.0


def _cpu_times() -> tuple[int, int]:
    with open("/proc/stat") as file:
        ticks = [int(field) for field in file.readline().split()[1:]]
    return sum(ticks), ticks[3] + ticks[4]


def print_machine() -> None:
    """Print the machine and its versions; warn if something else is running."""
    print(f"machine   {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"versions  torch {torch.__version__}, triton {_triton_version()}, {torch.get_num_threads()} threads")
    busy = busy_cores()
    print(f"load      {busy:.2f} cores busy before the start")
    if busy > 0.2:
        print("warning: something else is running; the figures below are too slow", file=sys.stderr)


def _triton_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"
