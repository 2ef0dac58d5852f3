"""Every test runs Triton kernels under its interpreter, so the switch is set before anything imports triton."""

import importlib.util
import os

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

FAST_FIRST = ["engine", "kernels", "viz", "browser"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FAST_FIRST.index(item.path.parent.name) if item.path.parent.name in FAST_FIRST else -1)
    try:
        hidden = importlib.util.find_spec("triton") is None
    except ImportError:
        hidden = True
    if hidden:
        for item in items:
            if item.get_closest_marker("triton"):
                item.add_marker(pytest.mark.skip(reason="triton is not installed"))
