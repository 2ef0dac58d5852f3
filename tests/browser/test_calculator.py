"""The memory calculator, as a user fills it in; its numbers are those that the engine counts with."""

import json
from pathlib import Path

import pytest
import torch
from live_site import Visitor
from playwright.sync_api import Page, expect

from pagelens.engine.kv_cache import KVCacheSpec

pytestmark = [pytest.mark.browser, pytest.mark.timeout(60)]

EMBEDDED = Path(__file__).parents[2] / "engine" / "assets" / "jargon" / "config.json"


def open_calculator(visitor: Visitor) -> Page:
    page = visitor.open()
    page.get_by_role("tab", name="Memory calculator").click()
    return page


def row(page: Page, name: str) -> str:
    return page.locator("tr", has=page.get_by_role("rowheader", name=name, exact=True)).inner_text()


def test_it_counts_as_the_engine_does(visitor: Visitor) -> None:
    page = open_calculator(visitor)
    page.get_by_label("model", exact=True).select_option("Llama 3.1 8B")
    per_token = KVCacheSpec(num_layers=32, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16).bytes_per_token()
    assert f"2 · 32 · 8 · 128 · 2 = {per_token:,}" in row(page, "KV bytes per token")
    page.get_by_label("bytes of a cache element").fill("4")
    assert f"= {2 * per_token:,}" in row(page, "KV bytes per token")


def test_every_number_follows_from_those_before_it(visitor: Visitor) -> None:
    page = open_calculator(visitor)
    for label, value in {
        "layers": 2, "KV heads": 2, "head size": 64, "bytes of a cache element": 2, "parameters, billions": 1,
        "bytes of a weight": 2, "GPU memory, GiB": 8, "gpu_memory_utilization": 0.5, "block size": 16,
        "max_model_len": 4096, "usual length, tokens": 100, "batch": 1000,
    }.items():  # fmt: skip
        page.get_by_label(label, exact=True).fill(str(value))
    per_block = 16 * 2 * 2 * 2 * 64 * 2
    blocks = int(4 * 2**30 - 2e9) // per_block
    assert f"{blocks:,} blocks = {16 * blocks:,} slots" in row(page, "blocks")
    assert f"→ {blocks // 7:,}" in row(page, "sequences of the usual length, paged")
    assert f"→ {16 * blocks // 4096:,}" in row(page, "sequences, contiguous")
    assert "fits" in row(page, "a batch of 1,000")
    page.get_by_label("batch", exact=True).fill("100000")
    assert "does not fit" in row(page, "a batch of 100,000")


def test_a_config_is_read_and_what_is_wrong_with_it_is_said(visitor: Visitor) -> None:
    page = open_calculator(visitor)
    config = json.loads(EMBEDDED.read_text())
    page.get_by_label("config.json").fill(json.dumps(config))
    heads = config["num_key_value_heads"]
    assert f"2 · {config['num_hidden_layers']} · {heads} · {config['head_dim']} · 2" in row(page, "KV bytes per token")
    page.get_by_label("config.json").fill("{not json")
    expect(page.get_by_role("alert").filter(has_text="this is no JSON")).to_be_visible()
    page.get_by_label("config.json").fill('{"hidden_size": 64}')
    expect(page.get_by_role("alert").filter(has_text="no num_hidden_layers, no num_attention_heads")).to_be_visible()
    page.get_by_label("config.json").fill("")
    page.get_by_label("gpu_memory_utilization").fill("1.5")
    expect(page.get_by_role("alert").filter(has_text="allowed is above 0 to 1")).to_be_visible()
    assert visitor.complaints == []
