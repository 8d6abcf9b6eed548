"""Trains the byte-fallback BPE tokenizer and writes its Hugging Face files.

Text is never normalised, spaces stay spaces, and a character without a token of its own becomes its UTF-8 bytes:
whatever goes in comes out. Each digit is a token, so that numbers line up.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from data import CONTEXT, END_OF_TEXT
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tiny_world import render, world

VOCAB_SIZE = 4096
SPECIAL = (END_OF_TEXT, "<|im_start|>", render.END)
# Visible when special tokens are skipped: a parser looks for them in the text.
MARKERS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
)
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_WORDS = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]|\s+(?!\S)|\s+")
# So that no printable ASCII character needs the byte tokens.
_ALPHABET = [chr(code) for code in range(32, 127)] + ["\n", "\t"]


def train(folder: Path, items: int, seed: int) -> Tokenizer:
    """Learn the merges from `items` training conversations and some general English; write the files; return it."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(_WORDS, "isolated")
    room = VOCAB_SIZE - len(SPECIAL) - len(MARKERS) - len(BYTES)
    trainer = trainers.BpeTrainer(
        vocab_size=room, min_frequency=2, initial_alphabet=_ALPHABET, limit_alphabet=len(_ALPHABET), show_progress=False
    )
    learner.train_from_iterator(_corpus(items, seed), trainer)
    learned = json.loads(learner.to_str())["model"]
    tokens = (*SPECIAL, *MARKERS, *BYTES, *sorted(learned["vocab"], key=learned["vocab"].__getitem__))
    merges = [(left, right) for left, right in learned["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges, byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(_WORDS, "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKERS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_config(folder)
    return tokenizer


def _corpus(items: int, seed: int) -> Iterator[str]:
    stream = world.training_items(seed)
    for _ in range(items):
        for piece in render.pieces(next(stream)):
            text = piece.text
            for token in (*SPECIAL, *MARKERS):
                text = text.replace(token, "\n")
            yield text
    # Python's own reference text: words beyond the small world, so that any English prompt has a fair length.
    yield from topics.values()


def _write_config(folder: Path) -> None:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "bos_token": None,
        "eos_token": render.END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    template = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
