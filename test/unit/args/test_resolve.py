"""Every "auto" that needs no model is filled by the hardware, and what the user gave stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from mysglang.srt.args.groups import ArgGroups, from_flat
from mysglang.srt.args.resolve import CPU_CHUNK, CPU_DECODE_WAIT, resolve
from mysglang.srt.args.schedule import DECODE_WAIT_TOKENS
from mysglang.srt.utils.hardware import Hardware

CPU = Hardware()
H200 = Hardware(gpu_memory=(139.8,))


def resolved(hardware: Hardware, **options: object) -> ArgGroups:
    return resolve(from_flat(ArgGroups, options), hardware, seed=7)


def test_device_follows_the_machine_unless_named() -> None:
    assert resolved(CPU).parallel.device == "cpu"
    assert resolved(H200).parallel.device == "cuda"
    assert resolved(H200, device="cpu").parallel.device == "cpu"


@pytest.mark.parametrize(
    ("gib", "chunk"), [(16, 2048), (24, 4096), (48, 4096), (80, 8192), (139.8, 8192), (180, 16384)]
)
def test_chunk_by_gpu_memory(gib: float, chunk: int) -> None:
    assert resolved(Hardware(gpu_memory=(gib,))).schedule.chunked_prefill_size == chunk


def test_chunk_is_that_of_the_gpu_in_use() -> None:
    assert resolved(Hardware(gpu_memory=(180.0, 16.0)), base_gpu_id=1).schedule.chunked_prefill_size == 2048


def test_chunk_on_cpu() -> None:
    assert resolved(H200, device="cpu").schedule.chunked_prefill_size == CPU_CHUNK


@pytest.mark.promise(44)
def test_several_keys_take_turns_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\ntwo\n")
    several = {"api_key_file": str(tmp_path / "keys")}
    assert resolved(CPU, **several).schedule.shares_by == "api_key"
    assert resolved(CPU, **several, fair_share_by="routing_key").schedule.shares_by == "routing_key"
    assert resolved(CPU, **several, fair_share_by="none").schedule.shares_by is None
    assert resolved(CPU, api_key="one").schedule.shares_by is None
    assert resolved(CPU).schedule.shares_by is None


def test_tiny_is_the_embedded_model() -> None:
    assert resolved(CPU, model_path="tiny") == resolved(CPU)
    elsewhere = resolved(
        CPU,
        model_path="owner/name",
        tokenizer_path="tiny",
        speculative_algorithm="STANDALONE",
        speculative_draft_model_path="tiny",
    )
    assert elsewhere.model.tokenizer_path == resolved(CPU).model.model_path
    assert elsewhere.speculative.speculative_draft_model_path == resolved(CPU).model.model_path


def test_auto_kernels_are_the_platforms_choice() -> None:
    kernels = resolved(CPU, attention_backend="auto", sampling_backend="auto").kernels
    assert kernels.attention_backend is None
    assert kernels.sampling_backend is None


def test_what_the_user_gave_stays() -> None:
    args = resolved(
        H200,
        chunked_prefill_size=-1,
        attention_backend="triton",
        mem_fraction_static=0.5,
        served_model_name="name",
        tokenizer_path="t",
        random_seed=3,
    )
    assert args.schedule.chunked_prefill_size == -1
    assert args.kernels.attention_backend == "triton"
    assert args.memory.mem_fraction_static == 0.5
    assert args.serving.served_model_name == "name"
    assert args.model.tokenizer_path == "t"
    assert args.model.random_seed == 3


def test_thoughts_of_the_embedded_model_are_told_apart() -> None:
    assert resolved(CPU).serving.reasoning_parser == "auto"
    assert resolved(CPU, model_path="m").serving.reasoning_parser is None
    assert resolved(CPU, reasoning_parser="none").serving.reasoning_parser == "none"


def test_resolving_twice_changes_nothing() -> None:
    once = resolved(H200)
    assert resolve(once, H200, seed=9) == once


def test_a_gpu_that_is_not_there_does_not_crash_it() -> None:
    assert resolved(CPU, device="cuda").parallel.device == "cuda"


def test_running_requests_of_a_cpu_wait_for_one_chunk_unless_told_otherwise() -> None:
    """On a GPU it stays open, since the model's steps decide."""
    assert resolved(H200, device="cpu").schedule.decode_wait_tokens == CPU_DECODE_WAIT
    assert resolved(H200, device="cpu", decode_wait_tokens=7).schedule.decode_wait_tokens == 7
    on_gpu = resolved(H200).schedule
    assert on_gpu.decode_wait_tokens is None and on_gpu.most_wait_tokens == DECODE_WAIT_TOKENS
