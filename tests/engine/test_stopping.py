"""Where an answer ends: stop strings however they are cut into tokens, end tokens, min_tokens; and what is streamed.

The tokenizer of most tests has just the pieces that the story needs, cut inside characters where it likes, so that a
stop string can begin, go on and end anywhere.
"""

import itertools
import random
from typing import Any, NamedTuple

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from pagelens.engine import LLM, SamplingParams
from pagelens.engine import events as ev
from pagelens.engine.output_processor import OutputProcessor
from pagelens.engine.request import Request
from pagelens.engine.sampler import Sample

pytestmark = pytest.mark.usefixtures("one_thread")

END = b"<end>"
"""The model's own end token. It has no text."""
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
HIDDEN = [byte for byte in range(256) if byte not in PRINTABLE]


def tokenizer_of(pieces: list[bytes]) -> Any:
    """Token i is the i-th piece, its bytes disguised as GPT-2 disguises them."""
    disguised = ["".join(chr(b if b in PRINTABLE else 256 + HIDDEN.index(b)) for b in piece) for piece in pieces]
    vocab = {text: number for number, text in enumerate(disguised)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=END.decode()))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END.decode())


class Streamed(NamedTuple):
    """What a client saw: the text of each step, and how it ended ("" if it did not)."""

    parts: list[str]
    reason: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        return "".join(self.parts)


def stream(pieces: list[str | bytes], **params: Any) -> Streamed:
    """Generate the pieces, one a token, until the answer ends; if it has not at the end of them, it is aborted."""
    as_bytes = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    vocabulary = list(dict.fromkeys([END, *as_bytes]))
    outputs = OutputProcessor(tokenizer_of(vocabulary), max_model_len=1000)
    its_params = SamplingParams(**params)
    request = Request("A", 0, "", [0], its_params, end_token_ids=its_params.end_token_ids(frozenset({0})))
    sequence = request.sequences[0]
    parts: list[str] = []
    for piece in as_bytes:
        sequence.token_ids.append(vocabulary.index(piece))
        output = outputs.process(sequence, Sample(sequence.token_ids[-1]))
        parts.append(output.text)
        if output.finish_reason is not None:
            assert not outputs._texts, "the text state of an answer that has ended is gone"
            return Streamed(parts, output.finish_reason, output.why_finished or "")
    return Streamed([*parts, outputs.process_ended([sequence])[0].text])


# -------------------------------------------------------------------------------------------------------- stop strings

CUTS: dict[str, tuple[list[str | bytes], tuple[str, ...], str, str]] = {
    # the pieces, the stop strings, the text without and with the one that ended it
    "inside a piece": (["The END of"], ("END",), "The ", "The END"),
    "a whole piece": (["The ", "END", " of"], ("END",), "The ", "The END"),
    "across two": (["The E", "ND of"], ("END",), "The ", "The END"),
    "a letter a piece": (list("The END of"), ("END",), "The ", "The END"),
    "a false start": (["The ENG", "INE EN", "D."], ("END",), "The ENGINE ", "The ENGINE END"),
    "a start within a start": (["ababa", "bc", "d"], ("ababc",), "ab", "abababc"),
    "at once": (["END"], ("END",), "", "END"),
    "twice": (["a END b END"], ("END",), "a ", "a END"),
    "line ends": (["a", "\n", "\n", "b"], ("\n\n",), "a", "a\n\n"),
    "the first of two": (["a one two"], ("two", "one"), "a ", "a one"),
    "two that begin alike": (["a ", "on", "ce"], ("only", "once"), "a ", "a once"),
    "the shorter is complete first": (["one", "s"], ("ones", "one"), "", "one"),
    "also within one piece": (["ones"], ("ones", "one"), "", "one"),
    "one inside another": (list("xabcd"), ("abcd", "bc"), "xa", "xabc"),
    "also at once": (["xabcd"], ("abcd", "bc"), "xa", "xabc"),
    "two that end together": (["xab", "c"], ("bc", "abc"), "x", "xabc"),
    "a character in two pieces": (["caf", "é".encode()[:1], "é".encode()[1:], "s"], ("é",), "caf", "café"),
    "characters cut askew": (
        ["語は".encode()[:2], "語は".encode()[2:4], "語は".encode()[4:] + "日本".encode()[:4], "日本".encode()[4:]],
        ("日本",),
        "語は",
        "語は日本",
    ),
    "an emoji of several": (
        ["ok ", "👩🏽‍🚀".encode()[:6], "👩🏽‍🚀".encode()[6:]],
        ("👩🏽‍🚀",),
        "ok ",
        "ok 👩🏽‍🚀",
    ),
}


@pytest.mark.parametrize("include", [False, True], ids=["without", "with"])
@pytest.mark.parametrize(("pieces", "stop", "without", "with_it"), CUTS.values(), ids=CUTS)
def test_a_stop_string_ends_the_answer_where_it_is_complete(pieces, stop, without, with_it, include):
    streamed = stream(pieces, stop=stop, include_stop_str_in_output=include)
    assert streamed.text == (with_it if include else without)
    assert (streamed.reason, streamed.why) == ("stop", "stop_string")


def test_what_could_be_the_beginning_of_a_stop_string_is_held_back_and_no_more():
    assert stream(["The ", "EN", "GINE E", "N", "DS"], stop="END").parts == ["The ", "", "ENGINE ", "", ""]


@pytest.mark.parametrize(
    ("pieces", "params", "reason"),
    [
        (["The ", "EN"], {"max_tokens": 2}, "length"),
        (["The ", "EN", END], {}, "stop"),
        (["The ", "EN"], {}, ""),  # aborted
    ],
)
def test_the_beginning_of_a_stop_string_is_text_if_nothing_follows(pieces, params, reason):
    streamed = stream(pieces, stop="END", **params)
    assert (streamed.text, streamed.reason) == ("The EN", reason)


def test_a_stop_string_in_the_very_last_token_is_the_reason():
    streamed = stream(["The ", "END"], stop="END", max_tokens=2)
    assert (streamed.text, streamed.reason, streamed.why) == ("The ", "stop", "stop_string")


def test_a_stop_string_is_found_in_text_that_waited_for_the_rest_of_a_character():
    """The last token ends inside a character, so its text comes only when there is no more: stop string and all."""
    streamed = stream(["The ", b"END\xe6"], stop="END", max_tokens=2)
    assert (streamed.text, streamed.reason, streamed.why) == ("The ", "stop", "stop_string")
    assert stream(["The ", b"EN\xe6"], stop="END", max_tokens=2).text == "The EN\ufffd"


def by_definition(text: str, stops: tuple[str, ...]) -> tuple[str, str]:
    """Letter by letter: the text up to the first stop string that is complete, and that string ("" if none is)."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, ""


@pytest.mark.parametrize("seed", range(150))
def test_any_text_stops_alike_however_it_is_cut(seed):
    """A small alphabet, so that beginnings overlap; its letters have one, two and three bytes."""
    chance = random.Random(seed)
    letters = ["a", "b", "é", "日"]
    text = "".join(chance.choices(letters, k=chance.randint(1, 25)))
    stops = tuple("".join(chance.choices(letters, k=chance.randint(1, 4))) for _ in range(chance.randint(1, 3)))
    data = text.encode()
    cuts = sorted({0, len(data), *chance.choices(range(len(data) + 1), k=chance.randint(0, 12))})
    pieces = [data[start:end] for start, end in itertools.pairwise(cuts)]
    before, stop = by_definition(text, stops)
    assert stream(pieces, stop=stops).text == before
    with_it = stream(pieces, stop=stops, include_stop_str_in_output=True)
    assert with_it.text == before + stop
    assert (with_it.why == "stop_string") == bool(stop)


# ---------------------------------------------------------------------------------------------- min_tokens, end tokens


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a", "END", "b", "END", "c"], "aENDb"),  # the first one comes too early
        (["a", "b", "E", "ND", "c"], "ab"),  # complete in time, though it began too early
        (["a", "b", "END", "c"], "ab"),  # the very token that reaches min_tokens
    ],
)
def test_a_stop_string_counts_if_it_is_complete_after_min_tokens(pieces, text):
    assert stream(pieces, stop="END", min_tokens=3).text == text


def test_a_shorter_stop_string_that_came_too_early_does_not_count_later():
    """While "ab" waits whether it becomes "abc", the "b" in it is past."""
    assert stream(["a", "b", "x", "y"], stop=("abc", "b"), min_tokens=3).text == "abxy"


def test_the_models_end_token_ends_without_text_and_is_passed_over_on_request():
    assert stream(["a", END, "b"]) == Streamed(["a", ""], "stop", "end_of_sequence")
    assert stream(["a", END, "b"], ignore_eos=True).text == "ab"


def test_a_stop_token_of_the_request_keeps_its_text():
    """As in vLLM's documentation of stop_token_ids: only special tokens have none."""
    assert stream(["a", "b", "c"], stop_token_ids=(2,)) == Streamed(["a", "b"], "stop", "end_of_sequence")
    assert stream(["a", "b", "c"], stop_token_ids=(2,), ignore_eos=True).text == "ab"


def test_max_tokens_and_the_length_of_the_model_end_an_answer():
    assert stream(["a"] * 9, max_tokens=4) == Streamed(["a"] * 4, "length", "max_tokens")
    assert len(stream(["a"] * 2000, max_tokens=2000).parts) == 999  # and one token of the prompt


# ------------------------------------------------------------------------------------------------- through the engine


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(kernel="torch", num_gpu_blocks_override=64, max_num_seqs=16, log_events=True)


PROMPT = "A hacker is a person who"


@pytest.mark.parametrize("include", [False, True])
def test_the_model_stops_at_any_stretch_of_what_it_would_say(llm, include):
    """Wherever the stretch lies in the tokens; and the tokens go no further than they must."""
    plain = llm.generate(PROMPT, SamplingParams(max_tokens=24, temperature=0, ignore_eos=True))[0].outputs[0]
    assert len(plain.text) > 40
    for start in range(2, 40, 5):
        stop = plain.text[start : start + 5]
        params = SamplingParams(
            max_tokens=24, temperature=0, ignore_eos=True, stop=stop, include_stop_str_in_output=include
        )
        answer = llm.generate(PROMPT, params)[0].outputs[0]
        end = plain.text.index(stop) + (5 if include else 0)
        assert (answer.text, answer.finish_reason) == (plain.text[:end], "stop")
        text_of_all_but_one = llm.engine.tokenizer.decode(answer.token_ids[:-1])
        assert stop not in text_of_all_but_one and stop in llm.engine.tokenizer.decode(answer.token_ids)


SMALL = {"num_gpu_blocks_override": 5}


@pytest.mark.parametrize("memory", [{}, SMALL, SMALL | {"swap_space": 0.01}], ids=["roomy", "recompute", "swap"])
def test_each_of_n_samples_stops_by_itself_whatever_the_memory_went_through(llm, memory):
    params = SamplingParams(max_tokens=20, n=4, seed=2, ignore_eos=True)
    plain = llm.generate(PROMPT, params)[0].outputs
    stops = (plain[0].text[4:8], plain[2].text[9:14])
    other = LLM(kernel="torch", log_events=True, block_size=8, **({"num_gpu_blocks_override": 64} | memory))
    result = other.generate(PROMPT, SamplingParams(max_tokens=20, n=4, seed=2, ignore_eos=True, stop=stops))[0]
    assert [answer.text for answer in result.outputs] == [by_definition(answer.text, stops)[0] for answer in plain]
    assert {"stop"} <= {answer.finish_reason for answer in result.outputs} <= {"stop", "length"}
    assert ("RequestPreempted" in other.engine.log.snapshot().totals) == bool(memory)


def test_streamed_text_is_the_final_text_and_never_part_of_a_stop_string(llm):
    """What the events and the outputs of each step show is never taken back."""
    plain = llm.generate(PROMPT, SamplingParams(max_tokens=24, temperature=0, ignore_eos=True))[0].outputs[0].text
    stop = plain[20:28]
    engine = llm.engine
    request = engine.add_request(PROMPT, SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, stop=stop))
    first, streamed = len(engine.log.read(0)), ""
    while engine.has_work:
        for output in engine.step():
            streamed += output.text
            assert plain[:20].startswith(streamed)
    assert streamed == plain[:20]
    generated = [event for event in engine.log.read(0)[first:] if isinstance(event, ev.TokensGenerated)]
    assert "".join(text for event in generated for text in event.texts) == streamed
    assert request.sequences[0].finish_reason == "stop"


def test_an_aborted_request_gives_the_text_held_back_and_everything_else_back():
    engine = LLM(kernel="torch", num_gpu_blocks_override=64).engine
    start = engine.add_request(PROMPT, SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
    while engine.has_work:
        engine.step()
    said = engine.outputs.decode(start.sequences[0].output_token_ids)
    params = SamplingParams(max_tokens=50, temperature=0, ignore_eos=True, stop=said + "\0")  # held back to the end
    request = engine.add_request(PROMPT, params)
    streamed = "".join(output.text for _ in range(6) for output in engine.step())
    ended = engine.abort(request.request_id)
    assert (streamed, [output.text for output in ended]) == ("", [said])
    assert ended[0].finish_reason == "abort" and not engine.has_work and not engine.outputs._texts
    assert engine.manager.pool.num_free == 64


def test_a_request_that_outgrows_the_pool_ends_with_its_text_so_far():
    engine_options = {"kernel": "torch", "block_size": 8, "num_gpu_blocks_override": 3, "enable_prefix_caching": False}
    answer = LLM(**engine_options).generate(PROMPT, SamplingParams(max_tokens=50, temperature=0, ignore_eos=True))[0]
    roomy = LLM(**engine_options | {"num_gpu_blocks_override": 30})
    plain = roomy.generate(PROMPT, SamplingParams(max_tokens=50, temperature=0, ignore_eos=True))[0].outputs[0]
    short = answer.outputs[0]
    assert short.finish_reason == "out_of_blocks"
    assert len(answer.prompt_token_ids) + len(short.token_ids) == 25, "the slots of 3 blocks, and one that found none"
    assert short.text and plain.text.startswith(short.text)


def test_a_beam_search_that_outgrows_the_pool_ends_with_its_beams_so_far():
    llm = LLM(kernel="torch", block_size=8, num_gpu_blocks_override=3)
    params = SamplingParams(max_tokens=60, beam_width=4, ignore_eos=True)
    result = llm.generate(PROMPT, params)[0]
    assert [beam.finish_reason for beam in result.outputs] == ["out_of_blocks"] * 4
    assert all(beam.text and 0 < len(beam.token_ids) <= 25 for beam in result.outputs)
    assert result.outputs == sorted(result.outputs, key=lambda beam: -beam.score) and result.time_finished
    assert not llm.engine.has_work and not llm.engine.requests and llm.engine.manager.pool.num_free == 3


def test_a_beam_search_in_a_failed_step_says_so(monkeypatch):
    llm = LLM(kernel="torch", block_size=8, num_gpu_blocks_override=40)
    execute, calls = llm.engine.runner.execute, []

    def fail_in_the_third_step(launch: Any) -> Any:
        calls.append(launch)
        if len(calls) == 3:
            raise RuntimeError("the device is gone")
        return execute(launch)

    monkeypatch.setattr(llm.engine.runner, "execute", fail_in_the_third_step)
    beams = llm.generate(PROMPT, SamplingParams(max_tokens=9, beam_width=3, ignore_eos=True))[0].outputs
    assert [(beam.finish_reason, len(beam.token_ids)) for beam in beams] == [("error", 2)] * 3
