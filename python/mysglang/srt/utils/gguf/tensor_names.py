"""Maps the tensors of a GGUF file to those of a Hugging Face checkpoint: their names, and changes that must be undone.

What llama.cpp's converter does to the weights of a family is undone here:

- Llama's queries and keys have their rows in another order, since llama.cpp turns neighbouring lanes of a head together
  and transformers the first half with the second;
- Gemma's norms are stored as 1 + w;
- the matrices of all experts of a layer are one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mysglang.srt.utils.gguf.header import GgufTensor

_LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)\.(weight|bias)", re.ASCII)

OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
PLAIN = {**ATTENTION, **MLP, "ffn_norm": "post_attention_layernorm"}
SHARED_EXPERT = {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
FOUR_NORMS = {
    **ATTENTION,
    **MLP,
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """The names that the tensors of one model family have in Hugging Face checkpoints."""

    layer: Mapping[str, str] = field(default_factory=lambda: PLAIN)
    """Within a layer: llama.cpp's name -> that of the module."""
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    """Names of one expert's matrices."""
    permuted: bool = False
    """True if rows of queries and keys are in llama.cpp's order."""
    one_more: bool = False
    """True if norms are stored as 1 + w."""


@dataclass(frozen=True, slots=True)
class NamedPart:
    """One tensor of a Hugging Face checkpoint: all of a stored tensor, or one expert's part of it."""

    name: str
    stored: GgufTensor
    shape: tuple[int, ...]
    expert: int | None = None
    """Which of the matrices of `stored` it is; None: it is all."""
    heads: int | None = None
    """Rows are in llama.cpp's order, in so many heads; None: they stand as they should."""
    one_more: bool = False


def named_parts(naming: Naming, tensor: GgufTensor, *, heads: int, kv_heads: int) -> Iterator[NamedPart]:
    """Yields the checkpoint's parts of a stored tensor. A tensor of an unknown name keeps it, and the model reports it.
    `rope_freqs.weight` yields no part, because it belongs to the config.
    """
    if tensor.name == "rope_freqs.weight":
        return
    if tensor.name in OUTSIDE:
        plus = naming.one_more and tensor.name == "output_norm.weight"
        yield NamedPart(OUTSIDE[tensor.name], tensor, tensor.shape, one_more=plus)
        return
    match = _LAYER.fullmatch(tensor.name)
    if match is None:
        yield NamedPart(tensor.name, tensor, tensor.shape)
        return
    prefix, kind = f"model.layers.{int(match[1])}.", match[3]
    own = match[2]
    experts = {f"ffn_{part}_exps": name for part, name in zip(("gate", "up", "down"), naming.parts, strict=True)}
    if own in experts and len(tensor.shape) == 3:
        for expert in range(tensor.shape[0]):
            name = f"{prefix}{naming.experts}.{expert}.{experts[own]}.{kind}"
            yield NamedPart(name, tensor, tensor.shape[1:], expert)
    elif own == "ffn_gate_inp":
        yield NamedPart(f"{prefix}{naming.router}.{kind}", tensor, tensor.shape)
    elif own in naming.layer:
        turned = {"attn_q": heads, "attn_k": kv_heads}.get(own) if naming.permuted else None
        # The gate of a shared expert is a vector there and a matrix of one row here.
        shape = (1, *tensor.shape) if own == "ffn_gate_inp_shexp" and len(tensor.shape) == 1 else tensor.shape
        plus = naming.one_more and own.endswith("norm")
        yield NamedPart(f"{prefix}{naming.layer[own]}.{kind}", tensor, shape, heads=turned, one_more=plus)
    else:
        yield NamedPart(tensor.name, tensor, tensor.shape)
