"""Which items are held out of training, and the usual item."""

from hashlib import blake2b

from mysglang.eval.exam import Item, Turn

HELD_OUT_ONE_IN = 16


def is_held_out(item: Item) -> bool:
    """True for the one item in sixteen that no training run may see.

    The item's key decides: items with the same key are on the same side, whatever their task, so a sum that is held out
    is not trained on as a thought or beside a tool either.
    """
    digest = blake2b(item.key.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % HELD_OUT_ONE_IN == 0


def exchange(task: str, key: str, question: str, answer: str, thought: str, system: str = "") -> Item:
    """The usual item: one question, one answer."""
    return Item(task, key, (Turn("user", question), Turn("assistant", answer, thought=thought)), system)
