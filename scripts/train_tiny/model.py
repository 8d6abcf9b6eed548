"""A compact Llama for training: fused projections, documents that do not see each other.

Knows the arithmetic and the Hugging Face names of its weights. Knows no data and no optimizer.
"""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the model, named as in config.json."""

    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 768
    max_position_embeddings: int = 8192
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    def config(self) -> dict[str, object]:
        """The Hugging Face config of this shape."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self),
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "initializer_range": 0.02,
            "use_cache": True,
            "rope_scaling": None,
            "pretraining_tp": 1,
            "bos_token_id": None,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "torch_dtype": "bfloat16",
        }


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.qkv = nn.Linear(shape.hidden_size, (self.heads + 2 * self.kv_heads) * self.dim, bias=False)
        self.out = nn.Linear(self.heads * self.dim, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, bounds: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, -1, self.dim).split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        share = self.heads // self.kv_heads
        k, v = k.repeat_interleave(share, dim=2), v.repeat_interleave(share, dim=2)
        return self.out(attend(q, k, v, bounds).reshape(rows, length, -1))


def attend(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor) -> Tensor:
    """Causal attention inside each document; q, k, v and the result are [rows, length, heads, dim].

    `bounds` int32 [n]: where the documents of the flattened batch begin, then its total, repeated to a fixed n. No
    document crosses a row.
    """
    rows, length = q.shape[:2]
    if q.is_cuda:
        flat_q, flat_k, flat_v = (t.flatten(0, 1).contiguous() for t in (q, k, v))
        out = varlen_attn(flat_q, flat_k, flat_v, bounds, bounds, length, length, window_size=(-1, 0))
        assert isinstance(out, Tensor)
        return out.view_as(q)
    owner = torch.searchsorted(bounds, torch.arange(rows * length, dtype=bounds.dtype), right=True).view(
        rows, 1, length
    )
    mask = (owner.unsqueeze(-1) == owner.unsqueeze(-2)).tril()
    by_head_q, by_head_k, by_head_v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(by_head_q, by_head_k, by_head_v, attn_mask=mask).transpose(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding on halves, as Llama has it in Hugging Face format."""
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.attention = Attention(shape)
        self.mlp_norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.gate_up = nn.Linear(shape.hidden_size, 2 * shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, bounds: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, bounds)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        frequency = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angle = torch.outer(torch.arange(shape.max_position_embeddings).float(), frequency)[:, None]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Small weights; what writes into the residual stream starts smaller still, by depth."""
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * len(self.layers)) ** 0.5 if residual else 0.02)

    def forward(self, tokens: Tensor, bounds: Tensor) -> Tensor:
        """Logits [rows, length, vocab] for tokens [rows, length]; `bounds` as in `attend`."""
        assert isinstance(self.cos, Tensor) and isinstance(self.sin, Tensor)
        x = self.embed(tokens)
        x = x.bfloat16() if x.is_cuda else x
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin, bounds)
        return F.linear(self.norm(x), self.embed.weight)

    @torch.no_grad()
    def take_hugging_face_weights(self, given: dict[str, Tensor]) -> None:
        """Copy weights under their Hugging Face names into ours. Raises KeyError where one is missing."""
        self.embed.weight.copy_(given["model.embed_tokens.weight"])
        self.norm.weight.copy_(given["model.norm.weight"])
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            at = f"model.layers.{i}."
            layer.attention_norm.weight.copy_(given[at + "input_layernorm.weight"])
            layer.mlp_norm.weight.copy_(given[at + "post_attention_layernorm.weight"])
            qkv = [given[f"{at}self_attn.{name}_proj.weight"] for name in "qkv"]
            layer.attention.qkv.weight.copy_(torch.cat(qkv))
            layer.attention.out.weight.copy_(given[at + "self_attn.o_proj.weight"])
            layer.gate_up.weight.copy_(torch.cat([given[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up")]))
            layer.down.weight.copy_(given[at + "mlp.down_proj.weight"])

    def hugging_face_weights(self) -> dict[str, Tensor]:
        """The weights under their Hugging Face names, split where ours are fused, bf16 on the CPU."""
        shape, out = self.shape, {"model.embed_tokens.weight": self.embed.weight, "model.norm.weight": self.norm.weight}
        kv = shape.num_key_value_heads * shape.head_dim
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            at = f"model.layers.{i}."
            q, k, v = layer.attention.qkv.weight.split((shape.num_attention_heads * shape.head_dim, kv, kv))
            gate, up = layer.gate_up.weight.chunk(2)
            out |= {
                at + "input_layernorm.weight": layer.attention_norm.weight,
                    at + "post_attention_layernorm.weight": layer.mlp_norm.weight,
                at + "self_attn.q_proj.weight": q, at + "self_attn.k_proj.weight": k, at + "self_attn.v_proj.weight": v,
                at + "self_attn.o_proj.weight": layer.attention.out.weight, at + "mlp.gate_proj.weight": gate,
                at + "mlp.up_proj.weight": up, at + "mlp.down_proj.weight": layer.down.weight,
            }  # fmt: skip
        return {name: weight.detach().to("cpu", torch.bfloat16).contiguous().clone() for name, weight in out.items()}
