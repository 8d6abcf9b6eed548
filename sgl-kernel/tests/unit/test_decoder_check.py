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
        page_table=torch.zeros(3, 9, dtype=torch.int32),
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


def with_layer(**changes: Tensor) -> DecoderTensors:
    """The second layer is another."""
    plain = model()
    return replace(plain, layers=[plain.layers[0], replace(plain.layers[1], **changes)])


def test_takes_what_it_is_written_for() -> None:
    for rows in range(1, MAX_ROWS + 1):
        check(model(), rows)
    check(model(head_dim=128, q_heads=8, kv_heads=1), 1)
    check(with_layer(qkv_bias=bf16(512), q_norm=bf16(64), k_norm=bf16(64)), 1)
    check(mixture(), 1)
    check(mixture(experts=256, chosen=16), 1)


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
        (replace(model(), page_table=torch.zeros(3, 9, dtype=torch.int64)), 1, "page table"),
        (replace(model(), page_table=torch.zeros(3, 18, dtype=torch.int32)[:, ::2]), 1, "page table"),
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
        (mixture(gate_up_bias=bf16(8, 384)), 1, "biases"),
    ],
)
def test_refuses_the_rest(wrong: DecoderTensors, rows: int, reason: str) -> None:
    with pytest.raises(DoesNotFitError, match=reason):
        check(wrong, rows)
