"""PrefixCache: finds blocks by what is in them.

A full block is *sealed* under a hash that chains over everything before it, so that equal hashes mean equal prefixes:

    tokens   The quick brown fox | jumps over the lazy | dog
    hash     h0 = H("", tokens 0) | h1 = H(h0, tokens 1) | (not full: not sealed)

    a new prompt that begins with the same 4 tokens finds h0 and shares the block

Hashes are 128-bit BLAKE2b over 8-byte token ids, and on a hit the tokens themselves are compared: neither truncated ids
nor a collision can hand one user's block to another. Chained block hashes: vLLM's automatic prefix caching.
"""

from array import array
from dataclasses import dataclass
from hashlib import blake2b


def chain_hash(parent: str, token_ids: list[int]) -> str:
    """Hash (32 hex digits) of a block: `parent` is the hash of the block before it, "" for the first."""
    digest = blake2b(array("q", token_ids).tobytes(), digest_size=16, key=parent.encode())
    return digest.hexdigest()


def salt_hash(salt: str) -> str:
    """The parent of a chain's first block: "" without a salt."""
    return blake2b(salt.encode(), digest_size=16).hexdigest() if salt else ""


@dataclass(slots=True)
class SealedBlock:
    """What a sealed block claims to hold."""

    block: int
    hash: str
    parent: str
    token_ids: list[int]


class PrefixCache:
    """An index of sealed blocks by hash and by block id; the two always agree."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.by_hash: dict[str, SealedBlock] = {}
        self.by_block: dict[int, SealedBlock] = {}

    def lookup(self, token_ids: list[int], hashes: list[str]) -> list[SealedBlock]:
        """The longest run of sealed blocks that holds a proper prefix of `token_ids`; `hashes` are its full blocks'.

        At most `len(token_ids) - 1` tokens are matched: the last one must be computed, or there would be no logits.
        """
        found: list[SealedBlock] = []
        size = self._block_size
        for index in range((len(token_ids) - 1) // size):
            sealed = self.by_hash.get(hashes[index])
            if sealed is None or sealed.token_ids != token_ids[index * size : (index + 1) * size]:
                break
            if found and sealed.parent != found[-1].hash:
                break
            found.append(sealed)
        return found

    def seal(self, block: int, hash: str, parent: str, token_ids: list[int]) -> bool:
        """Make a full block addressable; False if another block already stands for the same content."""
        if hash in self.by_hash:
            return False
        self.by_hash[hash] = self.by_block[block] = SealedBlock(block, hash, parent, token_ids)
        return True

    def forget(self, block: int) -> SealedBlock:
        """Remove a block from the index. Raises KeyError if it is not sealed."""
        sealed = self.by_block.pop(block)
        del self.by_hash[sealed.hash]
        return sealed
