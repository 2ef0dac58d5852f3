"""Chat: messages become a prompt, in which the tokens of the turns before are used again.

    turn 1   <|user|>What is a hacker?<|end|><|assistant|>          answered with   A | per | son ... <|end|>
    turn 2   <|user|>What is a hacker?<|end|><|assistant|>A person ...<|end|><|user|>Why?<|end|><|assistant|>
             '----- the tokens of turn 1, as they were computed and sampled ----''---- tokenized now ----------'

A sampled answer need not be cut into the tokens into which a tokenizer would cut its text, and the prefix cache finds
blocks by their tokens. So the former tokens are taken as they are, as far as they spell what the model's template says.
"""

from typing import Any

from .detokenizer import Detokenizer
from .errors import RequestError

Messages = list[dict[str, str]]


def has_chat_template(tokenizer: Any) -> bool:
    """Whether the model knows turns; one that does not continues the messages as one text."""
    return bool(tokenizer is not None and tokenizer.chat_template)


def chat_text(tokenizer: Any, messages: Messages) -> str:
    """The prompt that asks for the next answer.

    Args:
        tokenizer: a fast `transformers` tokenizer, or None for a model without one.
        messages: each with `role` ("system", "user", "assistant") and `content`, in their order.

    Raises:
        RequestError: there is no tokenizer, or the model's template refuses the messages.
    """
    if tokenizer is None:
        raise RequestError("this model has no tokenizer, so it cannot chat: send it token ids")
    if not has_chat_template(tokenizer):
        lines = [("" if message["role"] == "assistant" else "\n") + message["content"] for message in messages]
        return str(tokenizer.decode(tokenizer.encode(""))) + "".join(lines).removeprefix("\n")
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program, by the model's author
        raise RequestError(f"the model's chat template refuses these messages: {error}") from error


def chat_tokens(tokenizer: Any, messages: Messages, former: list[int]) -> list[int]:
    """The same prompt as tokens. `former` are those of the last turn, prompt and answer; they may be empty.

    Raises RequestError as `chat_text` does, and for text that cannot be encoded.
    """
    text = chat_text(tokenizer, messages)
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
    num_reused, length = 0, 0
    for number, token in enumerate(former, start=1):
        piece = detokenizer.add(token)
        if not text.startswith(piece, length):
            break
        length += len(piece)
        if piece:  # else within a character that several tokens spell
            num_reused = number
    try:
        rest = tokenizer.backend_tokenizer.encode(text[length:], add_special_tokens=False)
    except (TypeError, UnicodeError):
        raise RequestError("a message is not valid text (half a surrogate pair, or not UTF-8)") from None
    return former[:num_reused] + list(rest.ids)
