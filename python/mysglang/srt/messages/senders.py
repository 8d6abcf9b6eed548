"""The sending ends of the links to fronts and detokenizers, of which there may be one or several.

Cutting a batch for several readers needs numpy, which a detokenizer with a single front does not load. So `fanout.py`
is imported only where there are several.
"""

from __future__ import annotations

from collections.abc import Sequence

from mysglang.srt.messages.channels import Push, Sender
from mysglang.srt.messages.codec import ToDetokenizer, ToTokenizer, detokenizer_codec, tokenizer_codec


def to_fronts(endpoints: Sequence[str]) -> Sender[ToTokenizer]:
    """Returns the sending end of a link to all fronts."""
    pushes: list[Push[ToTokenizer]] = [Push(endpoint, tokenizer_codec()) for endpoint in endpoints]
    if len(pushes) == 1:
        return pushes[0]
    from mysglang.srt.messages.fanout import ToFronts

    return ToFronts(pushes)


def to_detokenizers(endpoints: Sequence[str]) -> Sender[ToDetokenizer]:
    """Returns the sending end of a link to all detokenizers. Waits until each of them is connected: most of them may
    have no message of a scheduler when the files of the sockets are removed.
    """
    pushes: list[Push[ToDetokenizer]] = [
        Push(endpoint, detokenizer_codec(), await_reader=True) for endpoint in endpoints
    ]
    if len(pushes) == 1:
        return pushes[0]
    from mysglang.srt.messages.fanout import ToDetokenizers

    return ToDetokenizers(pushes)
