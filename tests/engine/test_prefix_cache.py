"""Blocks found by content: chained, compared, and never all of a prompt."""

import pytest

from pagelens.engine import prefix_cache
from pagelens.engine.prefix_cache import PrefixCache, chain_hash


def hashes(tokens: list[int], size: int) -> list[str]:
    chain: list[str] = []
    for start in range(0, len(tokens) - size + 1, size):
        chain.append(chain_hash(chain[-1] if chain else "", tokens[start : start + size]))
    return chain


def sealed(tokens: list[int], size: int = 4) -> PrefixCache:
    cache = PrefixCache(size)
    chain = hashes(tokens, size)
    for index, hash in enumerate(chain):
        parent = chain[index - 1] if index else ""
        assert cache.seal(index, hash, parent, tokens[index * size : (index + 1) * size])
    return cache


def found(cache: PrefixCache, tokens: list[int], size: int = 4) -> list[int]:
    return [block.block for block in cache.lookup(tokens, hashes(tokens, size))]


def test_the_longest_common_run_of_blocks_is_found() -> None:
    cache = sealed(list(range(12)))
    assert found(cache, [*range(12), 99]) == [0, 1, 2]
    assert found(cache, [*range(8), 50, 51, 52, 53, 54]) == [0, 1]
    assert found(cache, [7, *range(12)]) == []


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    assert found(sealed(list(range(8))), list(range(8))) == [0]


def test_equal_blocks_after_different_beginnings_are_different() -> None:
    cache = sealed([1, 1, 1, 1, 2, 2, 2, 2])
    assert found(cache, [2, 2, 2, 2, 9]) == []


@pytest.mark.parametrize("modulus", [2**8, 2**16, 2**32])
def test_token_ids_equal_modulo_a_power_of_two_never_collide(modulus: int) -> None:
    assert found(sealed([5, 6, 7, 8]), [5 + modulus, 6, 7, 8, 9]) == []


def test_a_forced_hash_collision_is_caught_by_comparing_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "chain_hash", lambda parent, tokens: "same")
    cache = PrefixCache(2)
    assert cache.seal(0, "same", "", [1, 2])
    assert [block.block for block in cache.lookup([1, 2, 3], ["same"])] == [0]
    assert cache.lookup([8, 9, 3], ["same"]) == []


def test_the_first_block_stands_for_its_content() -> None:
    cache = sealed([1, 2, 3, 4])
    assert not cache.seal(5, chain_hash("", [1, 2, 3, 4]), "", [1, 2, 3, 4])
    assert cache.forget(0).hash == chain_hash("", [1, 2, 3, 4])
    assert cache.by_hash == cache.by_block == {}
