"""How many rows or tokens a step has must not choose another compiled variant of a kernel, beyond those that a warm-up
has compiled: a request would wait a second or more for each.

Nothing is compiled here. Triton's launcher says which variant it would need, for a device that need not be here.
"""

import pytest

from fixtures.triton_compiled import compile_launches

pytest.importorskip("triton")

PROGRAM = """
from fixtures.late_row_cases import random_case
from fixtures.sampling_cases import random_draws
from fixtures.state_runs import runs_of
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.kernels import activation, norm
from mysglang.srt.kernels.cuda import attention, attention_sinks, experts, expanded_attention, gemm, invariant_attention
from mysglang.srt.kernels.cuda import delta_rule, invariant_gemm, kvcache
from mysglang.srt.kernels.cuda import late_rows, latent_attention, rotary, select_experts, sampling, shared_gate
from mysglang.srt.platforms.cuda import CudaPlatform

needed = set()
jit.JITFunction._do_compile = lambda self, key, *_, **__: needed.add((self.fn.__name__, key))
DTYPE, HEADS, DIM = torch.bfloat16, 4, 64
spec = AttentionSpec(layer_id=0, num_heads=HEADS, num_kv_heads=HEADS, head_dim=DIM, scale=0.1)
latent = AttentionSpec(layer_id=0, num_heads=HEADS, num_kv_heads=1, head_dim=DIM + 16, scale=0.1, latent_dim=DIM)
pages = [torch.zeros(64, HEADS, DIM, dtype=DTYPE) for _ in "kv"]
latents, newest = torch.zeros(64, 1, DIM + 16, dtype=DTYPE), torch.zeros(9, dtype=torch.int64)
table = torch.zeros(9, 64, dtype=torch.int32)
weight = torch.zeros(2 * HEADS * DIM, HEADS * DIM, dtype=DTYPE)
cos_sin = torch.zeros(64, DIM)

def ints(count, kind=torch.int32):
    return torch.ones(count, dtype=kind)

def layers(tokens):
    # What is done to each token, whatever its row.
    qkv = torch.zeros(tokens, 3 * HEADS * DIM, dtype=DTYPE)
    q, k, v = qkv.chunk(3, dim=-1)
    places = ints(tokens, torch.int64)
    x = q.contiguous()
    rotary.rope_and_store(q, k, v, places, cos_sin, None, *pages, places)
    heads = [each.unflatten(-1, (HEADS, DIM)).transpose(0, 1)[None] for each in (q, k)]
    rotary.turn_heads(*heads, *torch.zeros(2, 1, tokens, DIM, dtype=DTYPE))
    kvcache.store_kv(k, v, *pages, places)
    norm.rms_norm(x, x[0], 1e-5)
    attention_sinks.weigh_sinks(x.view(-1, HEADS, DIM), torch.zeros(tokens, HEADS), torch.zeros(HEADS))
    norm.fused_add_rms_norm(x, x.clone(), x[0], 1e-5)
    activation.silu_and_mul(gemm.linear(x, weight, None))
    activation.sigmoid_gated(x.clone(), v)
    invariant_gemm._with_tile(invariant_gemm.fixed_tile(len(weight)))(x, weight, None)
    ids, gates = select_experts.topk_softmax(torch.zeros(tokens, 8), 2, True)
    mixture = torch.zeros(8, 64, x.shape[1], dtype=DTYPE), torch.zeros(8, x.shape[1], 32, dtype=DTYPE)
    experts.fused_experts(x, *mixture, ids, gates, "silu")
    shared_gate.add_gated(x, x.clone(), x, x[:1])
    sampling.resolve_tokens(places, places, newest)
    late_rows.uniforms_at(places, places)
    return q, places

def chosen(rows):
    logits = torch.zeros(rows, 512)
    gemm.linear(torch.zeros(rows, HEADS * DIM, dtype=DTYPE), weight, None)
    sampling.greedy_tokens(logits)
    sampling.record_tokens(newest, ints(rows, torch.int64), ints(rows, torch.int64))
    sampling.apply_token_bitmask(logits, ints(rows, torch.int64), ints(rows * 16).view(rows, 16))
    for filters in ({}, {"p": True}):
        sampling.draw_tokens(*random_draws(3, rows=rows, vocab=512, ties=False, **filters).arguments())

def attend(rows, q):
    lens = ints(rows)
    attention.decode_attention(q, *pages, table, ints(rows, torch.int64), lens, 1, spec)
    turned = torch.zeros(rows, HEADS * (DIM + 16), dtype=DTYPE)
    latent_attention.latent_decode_attention(turned, latents, table, ints(rows, torch.int64), lens, 1, latent)
    late_rows.place_tokens(*random_case(0, rows=rows).arguments)
    extends = lens, ints(rows, torch.int64)
    attention.decode_attention(q, *pages, table, ints(rows, torch.int64), lens, 1, spec, extends=extends)

def decode(rows):
    q, places = layers(rows)
    attend(rows, q)
    invariant_attention.invariant_attention(
        q, *pages, table, places, ints(rows), ints(rows), places, 1, 1, spec, decoding=True)
    chosen(rows)

def states(rows, length):
    # Decays by head and by channel. The second half of each prompt is a span of its own.
    spans = []
    for row, start in enumerate(range(0, rows * length, length)):
        cuts = [start, start + length // 2, start + length]
        spans += [(begin, end, row, None) for begin, end in zip(cuts, cuts[1:]) if end > begin]
    runs = runs_of([length] * rows, spans)
    q, k, v, by_channel = (torch.zeros(rows * length, HEADS, DIM, dtype=DTYPE) for _ in range(4))
    a, b = (torch.zeros(rows * length, HEADS, dtype=DTYPE) for _ in range(2))
    matrix, bias = torch.zeros(rows + 1, HEADS, DIM, DIM), torch.zeros(HEADS, DIM)
    delta_rule.delta_runs(q, k, v, a, b, bias[:, 0].clone(), bias[:, 0].clone(), matrix, runs)
    delta_rule.delta_runs(q, k, v, by_channel, b, bias[:, 0].clone(), bias, matrix, runs)

def prompts(rows, length):
    # So many rows with as many new tokens each, the last of which alone goes on.
    q, _ = layers(rows * length)
    states(rows, length)
    slots, lens, starts = ints(rows, torch.int64), ints(rows), ints(rows, torch.int64)
    attention.extend_attention(q, *pages, table, slots, lens, lens, starts, length, 1, spec)
    turned = torch.zeros(rows * length, HEADS * (DIM + 16), dtype=DTYPE)
    latent_attention.latent_extend_attention(turned, latents, table, slots, lens, lens, starts, length, 1, latent)
    made = torch.zeros(HEADS, rows * length, 32, dtype=DTYPE)
    q_heads = torch.zeros(rows * length, HEADS, 48, dtype=DTYPE)
    out, lse = torch.zeros_like(q_heads[..., :32]), torch.zeros(rows * length, HEADS)
    # The lines of a later piece begin anywhere among those of all pieces.
    piece = torch.zeros(rows + 1, 9, dtype=torch.int32)[rows % 2 :]
    side_by_side = expanded_attention.gather_rows(latents, table, piece, rows * length, length, 1)
    expanded_attention.attend_to_heads(
        q_heads, made, made, side_by_side[:, DIM:], piece, length, 0.1, out, lse, lse)
    invariant_attention.invariant_attention(
        q, *pages, table, slots, lens, lens, starts, length, 1, spec, decoding=False)
    indptr = ints(rows + 1)
    kvcache.list_pages(table, slots, lens, 1, indptr, ints(99), lens.clone())
    attend(rows, torch.zeros(rows, HEADS * DIM, dtype=DTYPE))
    chosen(rows)

for length in CudaPlatform.warm_up_prompts:
    prompts(1, length)
for rows in CudaPlatform.warm_up_rows:
    decode(rows)
warm = set(needed)
assert len(warm) > 30, len(warm)
for rows in (4, 5, 15, 16, 17, 32, 100, 256, 300, 1000):
    decode(rows)
for rows, length in ((1, 1), (1, 3), (2, 1), (2, 20), (3, 5), (4, 16), (7, 33), (16, 70), (33, 2), (200, 5), (1, 4096)):
    prompts(rows, length)
new = needed - warm
assert not new, "\\n".join(map(str, sorted(new, key=str)))
"""


def test_a_warm_up_knows_them_all() -> None:
    compile_launches(PROGRAM, 90)
