"""The growth of a step's cost, at tiny sizes: everything is timed, the fits are right, the chart is whole."""

import importlib
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def growth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("cost_growth")
    sizes = {"SEQUENCES": (1, 3), "CONTEXTS": (16, 40), "POOLS": (80, 160), "CONTEXT": 16, "FEW": 2, "SOME": 2}
    for name, size in sizes.items():
        monkeypatch.setattr(module, name, size)
    return module


def test_each_axis_is_timed_three_times_over_and_drawn(
    growth: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(growth, "STEPS", 4)
    monkeypatch.setitem(growth.MODEL, "max_position_embeddings", 1024)
    model = importlib.import_module("peers").write_model(tmp_path, growth.MODEL, torch.float32)
    measured = dict(growth.measure(model, rounds=1))
    sizes = {"sequences": (1, 3), "context": (16, 40), "pool": (80, 160)}
    assert {axis: tuple(x for x, _ in lines["step"]) for axis, lines in measured.items()} == sizes
    assert all(list(lines) == ["scheduler", "attention", "step"] for lines in measured.values())
    assert all(ms > 0 for lines in measured.values() for points in lines.values() for _, ms in points)
    for axis, lines in measured.items():
        growth.print_growth(axis, lines, flat=axis == "pool")
    assert capsys.readouterr().out.count("largest / smallest pool") == 3
    charts = [growth.line_chart("Time", axis, "ms", lines) for axis, lines in measured.items()]
    root = ElementTree.fromstring(growth.one_below_the_other(charts))
    nested = root.findall("{http://www.w3.org/2000/svg}svg")
    assert [chart.get("y") for chart in nested] == ["0", "300", "600"]
    assert all(len(chart.findall("{http://www.w3.org/2000/svg}polyline")) == 3 for chart in nested)


def test_the_pool_is_full_of_cached_blocks_before_it_is_measured(growth: ModuleType) -> None:
    served = growth.engine("", 100, scripted=True)
    growth.fill_with_cached_blocks(served)
    pool = served.manager.pool
    assert not pool.blank and len(pool.cached) == 100
    growth.decode_seconds(served, 2, 16, 1, scripted=True)
    assert len(pool.blank) + len(pool.cached) == 100, "what was measured is gone again"


def test_the_growth_of_known_curves(growth: ModuleType) -> None:
    linear, flat = [(x, 2.0 + 3 * x) for x in (1, 10, 100)], [(x, 5.0) for x in (1, 10, 100)]
    assert growth.exponent([(10, 30.0), (20, 60.0)]) == pytest.approx(1)
    assert growth.exponent([(10, 1.0), (20, 4.0)]) == pytest.approx(2)
    assert growth.exponent(flat) == 0
    assert growth.line(linear) == pytest.approx((2, 3, 0), abs=1e-9)
    assert growth.line([(x, float(x * x)) for x in (1, 10, 100)])[2] > 0.5, "a square is no line"
