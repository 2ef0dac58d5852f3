"""OutputProcessor: a sampled token becomes text, and perhaps the end of its sequence."""

from dataclasses import dataclass
from typing import Any

from .detokenizer import Detokenizer
from .events import Why
from .request import FinishReason, Sequence


@dataclass(slots=True)
class SequenceOutput:
    """What a step added to one sequence. `finish_reason` is set with its last output; then `token_id` may be None."""

    sequence: Sequence
    token_id: int | None
    text: str
    finish_reason: FinishReason | None
    why_finished: Why | None = None


class OutputProcessor:
    """Holds one detokenizer per unfinished sequence.

    Args:
        tokenizer: a fast `transformers` tokenizer, or None: then every text is empty.
        eos_token_ids: the model's own end tokens.
        max_model_len: most tokens of a sequence.
    """

    def __init__(self, tokenizer: Any, eos_token_ids: frozenset[int], max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._max_model_len = max_model_len
        self._detokenizers: dict[Sequence, Detokenizer] = {}

    def process(self, sequence: Sequence, token: int) -> SequenceOutput:
        """Text and end of a sequence whose newest token is `token`."""
        reason, why = self._end(sequence, token)
        text = ""
        if self._tokenizer is not None:
            detokenizer = self._detokenizers.setdefault(sequence, Detokenizer(self._tokenizer))
            text = detokenizer.add(token)
        if reason is not None:
            text += self._rest(sequence)
        return SequenceOutput(sequence, token, text, reason, why)

    def process_ended(self, sequences: list[Sequence]) -> list[SequenceOutput]:
        """The last outputs of sequences that ended without a new token, with the text still held back."""
        return [SequenceOutput(sequence, None, self._rest(sequence), sequence.finish_reason) for sequence in sequences]

    def token_texts(self, token_ids: list[int]) -> list[str]:
        """The text that each token of a prompt adds, special tokens included."""
        if self._tokenizer is None:
            return [""] * len(token_ids)
        detokenizer = Detokenizer(self._tokenizer, skip_special_tokens=False)
        texts = [detokenizer.add(token) for token in token_ids]
        texts[-1] += detokenizer.finish()
        return texts

    def _rest(self, sequence: Sequence) -> str:
        detokenizer = self._detokenizers.pop(sequence, None)
        return detokenizer.finish() if detokenizer else ""

    def _end(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, Why | None]:
        params = sequence.request.params
        is_eos = token in self._eos_token_ids and not params.ignore_eos
        if is_eos or token in params.stop_token_ids:
            return FinishReason.STOP, Why.END_OF_SEQUENCE
        if sequence.num_tokens - sequence.num_prompt_tokens >= params.max_tokens:
            return FinishReason.LENGTH, Why.MAX_TOKENS
        if sequence.num_tokens >= self._max_model_len:
            return FinishReason.LENGTH, Why.MAX_MODEL_LEN
        return None, None
