"""Detokenizer: tokens to text while they arrive.

A character can span several tokens, so a token may add no text and a later one all of it. What was streamed, plus what
`finish` returns, equals decoding all tokens at once.
"""

from typing import Any

from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Streams one sequence. `tokenizer` is a fast `transformers` tokenizer."""

    def __init__(self, tokenizer: Any, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._skip = skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._ids: list[int] = []
        self._length = 0

    def add(self, token_id: int) -> str:
        """The text that this token completes; "" in the middle of a character."""
        self._ids.append(token_id)
        text = self._stream.step(self._tokenizer, token_id) or ""
        self._length += len(text)
        return text

    def finish(self) -> str:
        """The text still held back: an unfinished character becomes U+FFFD, as decoding it would."""
        text: str = self._tokenizer.decode(self._ids, skip_special_tokens=self._skip)
        return text[self._length :]
