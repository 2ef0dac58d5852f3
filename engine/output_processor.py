"""OutputProcessor: a sampled token becomes text, and perhaps the end of its sequence."""

from dataclasses import dataclass
from typing import Any

from .detokenizer import Detokenizer
from .events import Why
from .request import FinishReason, Request, Sequence
from .sampler import Sample
from .sampling_params import SamplingParams


@dataclass(slots=True)
class SequenceOutput:
    """What a step added to one sequence.

    `finish_reason` is set with its last output; then `token_id` may be None. Beams never finish one by one: a beam
    search ends with one output that has the text of the best hypothesis.
    """

    sequence: Sequence
    token_id: int | None
    text: str
    finish_reason: FinishReason | None
    why_finished: Why | None = None
    logprobs: dict[int, float] | None = None


class OutputProcessor:
    """Holds the text state of each unfinished sequence.

    Args:
        tokenizer: a fast `transformers` tokenizer, or None: then every text is empty.
        max_model_len: most tokens of a sequence.
    """

    def __init__(self, tokenizer: Any, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._texts: dict[Sequence, StoppableText] = {}

    def process(self, sequence: Sequence, sample: Sample) -> SequenceOutput:
        """Text and end of a sequence whose newest token is `sample`."""
        params = sequence.request.params
        if sequence.request.search is not None:  # the search ends its beams itself, and decodes its hypotheses
            return SequenceOutput(sequence, sample.token_id, self.decode([sample.token_id]), None)
        text = self._texts.get(sequence)
        if text is None:
            text = self._texts[sequence] = StoppableText(self._tokenizer, params)
        reason, why = self._end(sequence, sample.token_id)
        generated = sequence.num_tokens - sequence.num_prompt_tokens
        new = text.add(sample.token_id, heed_stops=generated >= params.min_tokens)
        if reason is not None:
            new += text.finish()
        if text.stopped and why is not Why.END_OF_SEQUENCE:
            reason, why = FinishReason.STOP, Why.STOP_STRING
        if reason is not None:
            del self._texts[sequence]
        return SequenceOutput(sequence, sample.token_id, new, reason, why, sample.logprobs)

    def process_ended(self, sequences: list[Sequence]) -> list[SequenceOutput]:
        """The last outputs of sequences that ended without a new token, with the text still held back."""
        return [SequenceOutput(sequence, None, self._rest(sequence), sequence.finish_reason) for sequence in sequences]

    def process_beams(self, request: Request) -> SequenceOutput:
        """The one output of a beam search that is over."""
        assert request.search is not None
        best = request.search.finished[0]
        return SequenceOutput(request.sequences[0], None, self.decode(best.token_ids), FinishReason(best.finish_reason))

    def decode(self, token_ids: list[int]) -> str:
        """The text of finished output tokens."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True)) if self._tokenizer else ""

    def token_texts(self, token_ids: list[int]) -> list[str]:
        """The text that each token of a prompt adds, special tokens included."""
        if self._tokenizer is None:
            return [""] * len(token_ids)
        detokenizer = Detokenizer(self._tokenizer, skip_special_tokens=False)
        texts = [detokenizer.add(token) for token in token_ids]
        texts[-1] += detokenizer.finish()
        return texts

    def _rest(self, sequence: Sequence) -> str:
        text = self._texts.pop(sequence, None)
        return text.finish() if text else ""

    def _end(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, Why | None]:
        params = sequence.request.params
        if token in sequence.request.end_token_ids:
            return FinishReason.STOP, Why.END_OF_SEQUENCE
        if sequence.num_tokens - sequence.num_prompt_tokens >= params.max_tokens:
            return FinishReason.LENGTH, Why.MAX_TOKENS
        if sequence.num_tokens >= self._max_model_len:
            return FinishReason.LENGTH, Why.MAX_MODEL_LEN
        return None, None


class StoppableText:
    """Streams the text of one sequence up to the first stop string.

    A stop string may arrive in pieces, so as much text as could be the beginning of one is held back:

        stop "END"    streamed "The "    held "E"    then "ND" -> stopped; then "gine" -> "Engine" is streamed

    Of several the first to be complete counts, of those complete at once the longest: the same text stops at the same
    place however it is cut into tokens.
    """

    def __init__(self, tokenizer: Any, params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer) if tokenizer is not None else None
        self._stop = params.stop
        self._include = params.include_stop_str_in_output
        self._held = ""
        self.stopped = False

    def add(self, token_id: int, heed_stops: bool) -> str:
        """The text that can be streamed now. Sets `stopped` when a stop string is complete."""
        if self._detokenizer is None:
            return ""
        return self._release(self._detokenizer.add(token_id), heed_stops)

    def finish(self) -> str:
        """The rest, up to a stop string in it; nothing after one that ended the text."""
        if self._detokenizer is None or self.stopped:
            return ""
        text = self._release(self._detokenizer.finish(), heed_stops=True)
        return text if self.stopped else text + self._held

    def _release(self, new: str, heed_stops: bool) -> str:
        text = self._held + new
        found = [(end, -len(stop)) for stop in self._stop if (end := self._end(text, stop)) >= 0] if heed_stops else []
        if found:
            self.stopped, self._held = True, ""
            end, minus_length = min(found)
            return text[:end] if self._include else text[: end + minus_length]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _end(self, text: str, stop: str) -> int:
        """Where the first `stop` that is not all in the held part of `text` ends; -1 without one."""
        start = text.find(stop, max(0, len(self._held) + 1 - len(stop)))
        return start + len(stop) if start >= 0 else -1


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
