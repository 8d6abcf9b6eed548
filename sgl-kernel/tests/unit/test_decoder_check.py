"""Cases that the decode kernel refuses before any device is used."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mysgl_kernel.decoder import MAX_ROWS, DecoderTensors, DoesNotFitError, LayerTensors, check


def bf16(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def model(
    q_heads: int = 4, kv_heads: int = 2, head_dim: int = 64, hidden: int = 128, inner: int = 192
) -> DecoderTensors:
    layers = [
        LayerTensors(
            qkv=bf16((q_heads + 2 * kv_heads) * head_dim, hidden),
            o=bf16(hidden, q_heads * head_dim),
            gate_up=bf16(2 * inner, hidden),
            down=bf16(hidden, inner),
            input_norm=bf16(hidden),
            post_norm=bf16(hidden),
            keys=bf16(9, kv_heads, head_dim),
            values=bf16(9, kv_heads, head_dim),
        )
        for _ in range(2)
    ]
    return DecoderTensors(
        layers=layers,
        embedding=bf16(50, hidden),
        final_norm=bf16(hidden),
        lm_head=bf16(50, hidden),
        cos_sin=torch.empty(9, head_dim),
        page_tables=[torch.zeros(3, 9, dtype=torch.int32)],
        page_size=1,
        q_heads=q_heads,
        eps=1e-5,
        qk_eps=1e-5,
        scale=0.1,
    )


def mixture(experts: int = 8, chosen: int = 2, **changes: Tensor | None) -> DecoderTensors:
    """Both layers have experts."""
    plain = model()
    weights = {"gate_up": bf16(experts, 384, 128), "down": bf16(experts, 128, 192), "router": bf16(experts, 128)}
    layers = [replace(layer, **weights) for layer in plain.layers]
    return replace(plain, layers=[layers[0], replace(layers[1], **changes)], chosen=chosen)


def with_layer(**changes: Tensor | int) -> DecoderTensors:
    """The second layer is another."""
    plain = model()
    return replace(plain, layers=[plain.layers[0], replace(plain.layers[1], **changes)])


def two_spaces(space: int = 1, tables: int = 2, width: int = 9) -> DecoderTensors:
    """The second layer has pages of its own, and fewer of them."""
    own = with_layer(keys=bf16(5, 2, 64), values=bf16(5, 2, 64), window=4, space=space)
    others = [torch.zeros(3, width, dtype=torch.int32) for _ in range(tables - 1)]
    return replace(own, page_tables=[*own.page_tables, *others])


def test_takes_what_it_is_written_for() -> None:
    for rows in range(1, MAX_ROWS + 1):
        check(model(), rows)
    check(model(head_dim=128, q_heads=8, kv_heads=1), 1)
    check(with_layer(qkv_bias=bf16(512), q_norm=bf16(64), k_norm=bf16(64)), 1)
    check(mixture(), 1)
    check(mixture(experts=256, chosen=16), 1)
    check(mixture(router_bias=bf16(8), gate_up_bias=bf16(8, 384), down_bias=bf16(8, 128)), 1)
    check(with_layer(sinks=torch.empty(4)), 1)
    check(two_spaces(), 1)


@pytest.mark.parametrize(
    ("wrong", "rows", "reason"),
    [
        (model(), MAX_ROWS + 1, "rows"),
        (model(head_dim=96), 1, "dimensions"),
        (model(q_heads=18, kv_heads=2), 1, "share"),
        (model(hidden=160), 1, "64 long"),
        (model(inner=96), 1, "64 long"),
        (with_layer(down=bf16(128, 256)), 1, "sizes"),
        (with_layer(o=bf16(128, 256).float()), 1, "o is not a dense bfloat16"),
        (with_layer(gate_up=bf16(128, 384).T), 1, "gate_up is not a dense bfloat16"),
        (replace(model(), lm_head=bf16(50, 128).half()), 1, "output"),
        (replace(model(), page_tables=[torch.zeros(3, 9, dtype=torch.int64)]), 1, "page table"),
        (replace(model(), page_tables=[torch.zeros(3, 18, dtype=torch.int32)[:, ::2]]), 1, "page table"),
        (two_spaces(width=8), 1, "page table"),
        (two_spaces(space=2), 1, "space 2, which has no page table"),
        (two_spaces(tables=3), 1, "3 spaces"),
        (with_layer(values=bf16(5, 2, 64)), 1, r"values is not \[9, 2, 64\]"),
        (with_layer(qkv_bias=bf16(256)), 1, r"qkv_bias is not \[512\]"),
        (with_layer(sinks=torch.empty(2)), 1, r"sinks is not \[4\]"),
        (with_layer(sinks=bf16(4)), 1, "sinks is not a dense float32"),
        (replace(model(), cos_sin=torch.empty(9, 32)), 1, "cosines"),
        (mixture(), 2, "2 rows, and each has experts of its own"),
        (mixture(experts=6), 1, "2 of 6 experts"),
        (mixture(experts=260), 1, "2 of 260 experts"),
        (mixture(experts=32, chosen=17), 1, "17 of 32 experts"),
        (mixture(chosen=0), 1, "belong together"),
        (replace(model(), chosen=2), 1, "belong together"),
        (mixture(router=None), 1, "differ in their experts"),
        (mixture(router=bf16(12, 128)), 1, "differ in their experts"),
        (mixture(down=bf16(12, 128, 192)), 1, "sizes"),
        (mixture(gate_up_bias=bf16(384)), 1, r"gate_up_bias is not \[8, 384\]"),
        (mixture(router_bias=bf16(9)), 1, r"router_bias is not \[8\]"),
    ],
)
def test_refuses_the_rest(wrong: DecoderTensors, rows: int, reason: str) -> None:
    with pytest.raises(DoesNotFitError, match=reason):
        check(wrong, rows)
