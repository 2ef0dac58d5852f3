"""Train the small model that ships inside Pagelens, from public-domain text, on a laptop CPU.

An engine needs a model before it can show anything, and a demonstration should not begin with a download. This script
makes one that is small enough to live in the repository: a Llama of 4.6 million parameters, two layers deep. It learns
English from Jane Austen's novels, and its manner from two dictionaries with a sense of humour, the Jargon File and *The
Devil's Dictionary*. It takes a quarter of an hour on two idle CPU cores, and twice that on busy ones:

    python tutorials/train_embedded_model.py                                 # writes engine/assets/jargon
    python tutorials/train_embedded_model.py --steps 60 --out /tmp/jargon    # a minute, to see it work; it babbles

The texts come from three Debian packages. Those of the dictionaries, `dict-jargon` and `dict-devil`, state that their
texts are in the public domain. The novels, in `r-cran-janeaustenr`, are by an author who died in 1817. On Debian or
Ubuntu the script fetches and unpacks them itself. Elsewhere, unpack the three .deb files by hand and name the folder
with --text. The text itself is never written to the output.

Read from the top: the text, the tokenizer, the documents, the model, the training loop, and the model card.
"""

from __future__ import annotations

import argparse
import gzip
import math
import random
import re
import shutil
import struct
import subprocess
import time
import zlib
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 1
SOURCES = {
    "dict-jargon": "usr/share/dictd/jargon.dict.dz",
    "dict-devil": "usr/share/dictd/devil.dict.dz",
    "r-cran-janeaustenr": "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb",
}
SPECIAL_TOKENS = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"]
CHAT_TEMPLATE = (
    "{%- for message in messages if message['role'] in ('user', 'assistant') -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
UNWELCOME = re.compile(
    r"nigg|negro|\bjews?\b|jewish|hebrew|gypsy|squaw|\brap(?:e|ed|es|ist)\b|fuck|\bshit|\bcunt|\bwhore|\bfag",
    re.IGNORECASE,
)
QUESTIONS = (
    "What is {}?",
    "What is {}?",
    "What does {} mean?",
    "Define {}.",
    "Explain {}.",
    "Tell me about {}.",
    'What is the meaning of "{}"?',
    "What is meant by {}?",
)


# ---------------------------------------------------------------------------------------------------------- the text


@dataclass(frozen=True)
class Entry:
    """One dictionary entry: `grammar` is its part of speech ("n.", or empty); `paragraphs` are free of line wraps."""

    headword: str
    grammar: str
    paragraphs: tuple[str, ...]


def fetch(folder: Path) -> None:
    """Download and unpack the packages that hold the texts, unless they are there already."""
    folder.mkdir(parents=True, exist_ok=True)
    for package, path in SOURCES.items():
        if (folder / path).exists():
            continue
        if not shutil.which("apt-get"):
            raise SystemExit(f"No apt-get here: unpack Debian's {package} into {folder} by hand, then run this again.")
        subprocess.run(["apt-get", "download", package], cwd=folder, check=True)
        subprocess.run(["dpkg", "-x", next(folder.glob(f"{package}_*.deb")), folder], check=True)


def tidy(text: str) -> str:
    """Plain quotation marks, and neither cross-reference braces nor underscores that stand for italics."""
    for fancy, plain in zip("“”‘’`", "\"\"'''", strict=True):
        text = text.replace(fancy, plain)
    return re.sub(r"[{}]|\b_|_\b", "", re.sub(r" --(?=\s|$)", " —", text))


def paragraphs_of(block: str) -> tuple[str, ...]:
    """Undo the hard line breaks of a block of text. Verse keeps its lines; diagrams and tables are left out."""
    result = []
    for chunk in re.split(r"\n\s*\n", block):
        lines = [" ".join(line.split()) for line in chunk.splitlines() if line.strip()]
        text = re.sub(r"\{ ", "{", " ".join(lines))
        letters = sum(character.isalpha() or character == " " for character in text)
        if len(text) < 8 or letters < 0.8 * len(text):
            continue
        short_lines = len(lines) > 2 and max(map(len, lines)) < 52
        result.append(tidy("\n".join(lines) if short_lines else text))
    return tuple(result)


def read_jargon(text: str) -> list[Entry]:
    """Split the Jargon File: a headword at the margin, " /pronunciation/, n." below it, then an indented body."""
    entries = []
    for match in re.finditer(r"^(\S.*)\n(?: (?! )(.*))?\n\n((?:(?: .*)?\n)+)", text, re.MULTILINE):
        headword, note, body = match.group(1), match.group(2) or "", match.group(3)
        paragraphs = paragraphs_of(body)
        if paragraphs and not headword.startswith("00-database"):
            grammar = re.sub(r"^.*/,?\s*", "", note).strip()
            entries.append(Entry(tidy(headword), tidy(grammar), paragraphs))
    return entries


def read_devil(text: str) -> list[Entry]:
    """Split The Devil's Dictionary: "HEADWORD, n.  The definition", with further paragraphs indented."""
    entries = []
    pieces = re.split(r"^([A-Z][A-Z' -]+), ((?:n|adj|adv|v|pp|p|x|interj|conj|prep)\.[a-z. ]*?)  ?", text, flags=re.M)
    for headword, grammar, body in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        body = re.sub(r"^(?= +\S.*\n\S)", "\n", body, flags=re.M)  # one indented line begins a paragraph
        body = re.sub(r"^(\S.*\n)(?= )", r"\1\n", body, flags=re.M)  # several are verse
        paragraphs = paragraphs_of(body)
        if paragraphs:
            entries.append(Entry(headword.lower(), grammar.strip(), paragraphs))
    return entries


def read_entries(folder: Path) -> list[Entry]:
    """Both dictionaries in printed order, without the few entries that a demonstration had better not imitate."""
    entries: list[Entry] = []
    for package, reader in (("dict-jargon", read_jargon), ("dict-devil", read_devil)):
        text = gzip.decompress((folder / SOURCES[package]).read_bytes()).decode("utf-8", "replace")
        entries += reader(text)
    return [entry for entry in entries if not UNWELCOME.search(plain(entry))]


def read_chapters(folder: Path) -> list[str]:
    """The chapters of the novels, out of R's own format: zlib streams, each a vector of lines with their lengths."""
    data = (folder / SOURCES["r-cran-janeaustenr"]).read_bytes()
    chapters = []
    while data:
        stream = zlib.decompressobj()
        novel = stream.decompress(data[4:])  # four bytes say how long it is when decompressed
        data = stream.unused_data
        position = novel.index(b"\0\0\0\x10") + 4  # the mark of a vector of strings
        (count,) = struct.unpack_from(">I", novel, position)
        position += 4
        lines = []
        for _ in range(count):
            _flags, length = struct.unpack_from(">II", novel, position)
            lines.append(novel[position + 8 : position + 8 + length].decode())
            position += 8 + length
        for chapter in re.split(r"^(?:CHAPTER|Chapter) \w+$", "\n".join(lines), flags=re.M)[1:]:
            chapters.append(re.sub(r"\s*--+\s*", " — ", "\n\n".join(paragraphs_of(chapter))))
    return chapters


# ----------------------------------------------------------------------------------------------------- the documents


def plain(entry: Entry) -> str:
    """An entry as a dictionary prints it."""
    heading = f"{entry.headword}, {entry.grammar}" if entry.grammar else entry.headword
    return heading + "\n\n" + "\n\n".join(entry.paragraphs)


def chat_turn(entry: Entry, rng: random.Random) -> str:
    """An entry as a question and its answer: the first sense, without number or etymology (in square brackets)."""
    body = "\n\n".join(entry.paragraphs)
    body = re.sub(r"^(?:\[[^\]]*\]\s*|1\.\s+)+", "", body) or body
    first_sense = re.split(r"\n\n(?=\d\. )", body)[0].split("\n\n")
    answer = first_sense[0]
    for paragraph in first_sense[1:]:
        if len(answer) + len(paragraph) > 700:
            break
        answer += "\n\n" + paragraph
    subject = entry.headword
    if entry.grammar.startswith("n.") and rng.random() < 0.5:
        subject = ("an " if subject[0].lower() in "aeiou" else "a ") + subject
    question = rng.choice(QUESTIONS).format(subject)
    return f"<|user|>{question}<|end|><|assistant|>{answer}<|end|>"


def training_text(entries: list[Entry], rng: random.Random) -> list[str]:
    """One pass over the entries, each in a form drawn anew: as printed, as prose without its heading, or as chat."""
    documents = []
    for entry in rng.sample(entries, len(entries)):
        form = rng.random()
        if form < 0.45:
            documents.append(plain(entry))
        elif form < 0.65:
            documents.append("\n\n".join(entry.paragraphs))
        elif form < 0.9:
            documents.append(chat_turn(entry, rng))
        else:
            documents.append(chat_turn(rng.choice(entries), rng) + chat_turn(entry, rng))
    return documents


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    """The tokens of each text, however long it is."""
    ids: list[list[int]] = tokenizer(texts, verbose=False)["input_ids"]
    return ids


def train_tokenizer(entries: list[Entry], chapters: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE: any Unicode text can be written with it, and decoding gives that text back exactly."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([plain(entry) for entry in entries] * 3 + chapters, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=SPECIAL_TOKENS[1:],
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


class Batches:
    """Windows of the training text: some of the novels, some of the dictionaries.

    Half of those of the dictionaries begin where a document begins, for so does a prompt; the others begin anywhere.
    """

    def __init__(self, entries: list[Entry], chapters: list[str], tokenizer: PreTrainedTokenizerFast) -> None:
        self.entries, self.tokenizer, self.rng = entries, tokenizer, random.Random(SEED)
        self.novels, _ = self._join(chapters)
        self.dictionaries = torch.empty(0, dtype=torch.long)
        self.starts: list[int] = []
        self.tokens_left = 0

    def _join(self, documents: list[str]) -> tuple[torch.Tensor, list[int]]:
        """The documents end to end, and where each of them starts."""
        tokens: list[int] = []
        starts = []
        for ids in encode(self.tokenizer, documents):
            starts.append(len(tokens))
            tokens += [*ids, self.tokenizer.eos_token_id]
        return torch.tensor(tokens), starts

    def draw(self, rows: int, length: int, novels: float) -> torch.Tensor:
        """A batch of windows, a share of them from the novels, each one token longer than its number of inputs."""
        windows = []
        for _ in range(rows):
            if self.rng.random() < novels:
                source, begin = self.novels, self.rng.randrange(len(self.novels) - length)
            else:
                if self.tokens_left <= 0:  # a pass is over: put the entries into new forms for the next
                    self.dictionaries, self.starts = self._join(training_text(self.entries, self.rng))
                    self.tokens_left = len(self.dictionaries)
                self.tokens_left -= length
                source = self.dictionaries
                anywhere = self.rng.randrange(len(source) - length)
                begin = min(self.rng.choice((anywhere, self.rng.choice(self.starts))), len(source) - length - 1)
            windows.append(source[begin : begin + length + 1])
        return torch.stack(windows)


# --------------------------------------------------------------------------------------------------------- the model


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Two layers, because Triton's interpreter pays for each; eight query heads share two key/value heads."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=384,
        intermediate_size=896,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def loss_of(model: LlamaForCausalLM, windows: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Cross-entropy of each next token, in nats."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(windows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten(), reduction=reduction)


def bits_per_byte(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, entries: list[Entry], length: int = 1024
) -> float:
    """How many bits the model needs for each byte of the entries as printed: the lower, the better it predicts.

    It reads `length` tokens at a time. Before it has been trained on 1,024, more than 256 only confuse it.
    """
    model.eval()
    end = tokenizer.eos_token_id
    tokens = [end]
    for ids in encode(tokenizer, [plain(entry) for entry in entries]):
        tokens += [*ids, end]
    nats = 0.0
    with torch.no_grad():
        for begin in range(0, len(tokens) - 1, length):
            nats += loss_of(model, torch.tensor([tokens[begin : begin + length + 1]]), reduction="sum").item()
    model.train()
    return nats / math.log(2) / sum(len(plain(entry).encode()) for entry in entries)


# ------------------------------------------------------------------------------------------------------- the training


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    training: list[Entry],
    chapters: list[str],
    held_out: list[Entry],
    steps: int,
    checkpoint: Path | None,
) -> int:
    """Train in place for `steps`, keep the weights that did best on the held-out entries, and return their step.

    Every step sees 2,048 tokens: 8 windows of 256, and over the last fifth 2 of 1,024, to reach the last position. The
    novels begin as three fifths of the text and end as a tenth: first the language, then what to say in it.
    """
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    norms = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.98), fused=True)

    def rate(step: int) -> float:
        """A short warm-up, then half a cosine down to a fiftieth."""
        return min((step + 1) / 100, 0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * step / steps)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    batches = Batches(training, chapters, tokenizer)
    best, best_step, best_weights = math.inf, 0, model.state_dict()
    began = time.perf_counter()
    for step in range(1, steps + 1):
        rows, length = (8, 256) if step <= 0.8 * steps else (2, 1024)
        loss = loss_of(model, batches.draw(rows, length, novels=0.6 - 0.5 * step / steps))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0:
            seconds = time.perf_counter() - began
            print(f"step {step:5}/{steps}  loss {loss.item():.3f}  {step * 2048 / seconds:,.0f} tokens/s", flush=True)
        if step % 200 == 0 or step == steps:
            score = bits_per_byte(model, tokenizer, held_out, length)
            print(f"step {step:5}/{steps}  held-out bits per byte {score:.4f}", flush=True)
            if score < best:
                best, best_step = score, step
                best_weights = {name: weight.clone() for name, weight in model.state_dict().items()}
                if checkpoint:
                    torch.save(best_weights, checkpoint)
    model.load_state_dict(best_weights)
    return best_step


# ------------------------------------------------------------------------------------------------------ the model card

MODEL_CARD = """\
---
license: cc0-1.0
language: en
pipeline_tag: text-generation
---

# jargon, the model inside Pagelens

A Llama of {parameters:,} parameters that writes English in the voice of the Jargon File. It exists so that Pagelens has
something real to serve without a download. It is not a source of facts.

| | |
|---|---|
| Shape | {layers} layers, {hidden} wide, {heads} query heads and {kv_heads} key/value heads of {head_dim} |
| Embeddings | tied |
| Context | {context:,} tokens |
| Tokenizer | byte-level BPE, {vocabulary:,} entries with {specials} |
| Weights | bfloat16 |
| Trained | {day}, {minutes:.0f} minutes on a CPU with {threads} threads, {steps:,} steps of 2,048 tokens |
| Held-out bits per byte | {bits:.3f} |

The bits per byte are those of the bfloat16 weights on {held_out} entries of {entries:,}, which neither the model nor
its tokenizer was trained on. They also chose the step whose weights were kept ({best_step:,}), so the figure is
slightly kind.

## What it was trained on

{entries:,} dictionary entries, {megabytes:.1f} MB of text, and {chapters} chapters of novels, {novel_megabytes:.1f} MB.
The texts are not in this folder. The few entries with a slur or an obscenity were left out.

- *The Jargon File*, version 4.4.7, 29 December 2003, from Debian's package `dict-jargon`. Its notice reads: "This
  document (the Jargon File) is in the public domain, to be freely used, shared, and modified."
- *The Devil's Dictionary*, by Ambrose Bierce, 1911, from Debian's package `dict-devil`. Its notice reads: "A Public
  Domain Text, Copyright Expired".
- Jane Austen's six completed novels, 1811 to 1818, from Debian's package `r-cran-janeaustenr`. Their author died in
  1817 and they are in the public domain; the package around them is under the MIT licence.

Entries appear as printed, as prose without the heading, and as chat: a question that this project's script phrases, and
the opening of the entry as the answer. The weights are dedicated to the public domain (CC0 1.0).

## How to use it

Plain text is continued. For chat, apply the tokenizer's template:
`<|user|>What is a kluge?<|end|><|assistant|>`. It ends an answer with `<|end|>` and a document with `<|endoftext|>`;
both are end-of-sequence tokens. System messages are left out by the template. It knows single definitions, so each
question is best asked by itself. A temperature between 0.5 and 0.8 reads better than greedy decoding.

## Limits

It has 4.6 million parameters and has read eight books. It invents facts, people, dates and etymologies, loses the
thread after a sentence or two, and repeats itself under greedy decoding. It can recite passages of its sources. It
answers most questions as if asked for a definition, cannot follow instructions, and knows English only. The books
carry the jokes and the prejudices of their time, and the model can repeat them. It has had no safety training.

Made by `tutorials/train_embedded_model.py`, which says how to make it again.
"""


def write(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, card: str) -> None:
    """Write the folder that `from_pretrained` reads."""
    shutil.rmtree(folder, ignore_errors=True)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|end|>"]),
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    config = folder / "config.json"  # stored in 16 bits, computed in 32, which costs so small a model nothing
    config.write_text(config.read_text().replace('"dtype": "bfloat16"', '"dtype": "float32"'))
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    (folder / "model.safetensors").chmod(0o644)
    (folder / "README.md").write_text(card, encoding="utf-8")


def main() -> None:
    """Read the text, train, and write the model."""
    parser = argparse.ArgumentParser(description="Train the model that ships inside Pagelens.")
    repository = Path(__file__).resolve().parents[1]
    parser.add_argument("--out", type=Path, default=repository / "engine" / "assets" / "jargon")
    parser.add_argument("--text", type=Path, default=Path.home() / ".cache" / "pagelens" / "text")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--checkpoint", type=Path, help="a file to keep the best weights so far in")
    options = parser.parse_args()

    torch.manual_seed(SEED)
    fetch(options.text)
    entries = read_entries(options.text)
    order = random.Random(SEED).sample(entries, len(entries))
    held_out, training = order[: len(order) // 20], order[len(order) // 20 :]
    chapters = read_chapters(options.text)
    tokenizer = train_tokenizer(training, chapters)
    model = build_model(tokenizer)
    megabytes = sum(len(plain(entry).encode()) for entry in entries) / 1e6
    novel_megabytes = sum(len(chapter.encode()) for chapter in chapters) / 1e6
    print(f"{len(entries):,} entries, {megabytes:.2f} MB, of which {len(held_out)} entries are held out")
    for name, texts in (("entries", [plain(entry) for entry in training]), ("chapters", chapters)):
        print(f"{len(texts):,} {name} to train on, {sum(map(len, encode(tokenizer, texts))):,} tokens")
    print(f"{model.num_parameters():,} parameters", flush=True)

    began = time.perf_counter()
    best_step = train(model, tokenizer, training, chapters, held_out, options.steps, options.checkpoint)
    minutes = (time.perf_counter() - began) / 60

    model.to(torch.bfloat16)  # what is stored is what is scored
    model.to(torch.float32)
    bits = bits_per_byte(model, tokenizer, held_out)
    model.to(torch.bfloat16)
    config = model.config
    card = MODEL_CARD.format(
        parameters=model.num_parameters(),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        context=config.max_position_embeddings,
        vocabulary=config.vocab_size,
        specials=", ".join(f"`{token}`" for token in SPECIAL_TOKENS),
        day=date.today().isoformat(),
        minutes=minutes,
        threads=torch.get_num_threads(),
        steps=options.steps,
        best_step=best_step,
        bits=bits,
        held_out=len(held_out),
        entries=len(entries),
        megabytes=megabytes,
        chapters=len(chapters),
        novel_megabytes=novel_megabytes,
    )
    write(options.out, model, tokenizer, card)
    print(f"held-out bits per byte {bits:.4f}; written to {options.out} after {minutes:.1f} minutes")


if __name__ == "__main__":
    main()
