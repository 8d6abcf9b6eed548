"""EmbeddingReqInput: what a client may ask of a model that makes vectors, under SGLang's names, checked field by field.

A field is honoured, refused by name or reported, as in `generate.py`. Knows neither tokenizer nor limits.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mysglang.srt.messages.generate import REFUSED, FieldReport, GenerateReqInput, convert_fields, settled_fields
from mysglang.srt.sampling.sampling_params import SamplingParams

# Fields of SGLang that would change a vector -> the value with which they may be sent all the same.
UNSUPPORTED: dict[str, object] = {
    **dict.fromkeys(("image_data", "video_data", "audio_data", "lora_path", "embed_overrides")),
    **dict.fromkeys(("positional_embed_overrides", "multi_item_delimiter_indices")),
    **dict.fromkeys(("is_cross_encoder_request", "return_pooled_hidden_states"), False),
}

# Fields of SGLang that change no vector -> the value with which they are not reported.
IDLE: dict[str, object] = {
    **dict.fromkeys(("modalities", "routing_key", "custom_labels", "external_trace_header", "received_time")),
    **dict.fromkeys(("routed_dp_rank", "data_parallel_rank", "priority"), 0),
    "background": False,
    "sampling_params": {},
    "log_metrics": True,
}

NOTHING_NEW = SamplingParams(temperature=0.0, max_new_tokens=0)


class EmbeddingReqInput(msgspec.Struct, frozen=True, kw_only=True):
    """A request for vectors or scores of one prompt, or of a batch of them."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    """The prompt as token ids, or a list of such prompts."""
    dimensions: int | None = None
    """Length to which vectors are cut, for a model that was trained for it; null for all of it."""
    rid: str | list[str] | None = None
    extra_key: str | None = None
    """Namespace of the prefix cache. `cache_salt` is another name for it; both together are one key."""
    cache_salt: str | None = None
    no_logs: bool = False
    """If true, the request is not logged."""

    def request(self) -> GenerateReqInput:
        """Returns the request that ends after its prompt."""
        return GenerateReqInput(
            text=self.text,
            input_ids=self.input_ids,
            rid=self.rid,
            extra_key=self.extra_key,
            cache_salt=self.cache_salt,
            no_logs=self.no_logs,
            sampling_params=NOTHING_NEW,
            pool=True,
        )

    @property
    def several(self) -> bool:
        """True if the call returns a list, even of one embedding."""
        return isinstance(self.text, list) or any(isinstance(entry, list) for entry in (self.input_ids or [])[:1])


def parse_embedding(data: Mapping[str, object], report: FieldReport = REFUSED) -> EmbeddingReqInput:
    """Returns a native request, parsed from a client's body. Null counts as the default. Raises InvalidRequest that
    names the field. `report` receives the fields that change nothing.
    """
    fields = settled_fields(data, EmbeddingReqInput.__struct_fields__, UNSUPPORTED, idle=IDLE, report=report)
    return convert_fields(fields, EmbeddingReqInput, "")
