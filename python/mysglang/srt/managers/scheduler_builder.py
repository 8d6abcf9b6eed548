"""build_scheduler: the composition root. The only file that reads which features are on.

Everything else works with what it is given here and asks nothing.
"""

from __future__ import annotations

from mysglang.srt.args.schedule import ScheduleArgs
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.constrained.backend import JsonStyle
from mysglang.srt.constrained.compile_messages import CompilerSetup
from mysglang.srt.constrained.factory import NO_BACKEND, choose_backend
from mysglang.srt.constrained.structured_output import StructuredOutput
from mysglang.srt.errors import ConfigError
from mysglang.srt.managers.model_files import load_model_config, load_tokenizer
from mysglang.srt.managers.scheduler_assembly import (
    Channels,
    MakeStopText,
    SchedulerOptions,
    assemble,
    max_request_len,
)
from mysglang.srt.managers.worker_factory import make_worker
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.prefix_groups import CascadeCosts
from mysglang.srt.messages.channels import Pull, Push
from mysglang.srt.messages.codec import detokenizer_codec, scheduler_codec, tokenizer_codec
from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.finish import StopText
from mysglang.srt.scheduling.loops import Loop
from mysglang.srt.scheduling.prefill_planner import PrefillLimits
from mysglang.srt.scheduling.step_planner import OrderName
from mysglang.srt.server_args import PortArgs, ServerArgs
from mysglang.srt.utils.hardware import usable_cores
from mysglang.srt.utils.tokenizer import Tokenizer


def build_scheduler(args: ServerArgs, ports: PortArgs, tp_rank: int) -> tuple[Loop, SchedulerFacts]:
    """The scheduler of one rank, connected and ready to turn, and what it found out about itself."""
    model = load_model_config(args.model)
    tokenizer = load_tokenizer(args.model)
    structured = _structured_output(args, model, tokenizer)
    worker = make_worker(args, model)
    capacity = worker.capacity
    kv = KvManager(
        capacity.num_pages,
        capacity.page_size,
        capacity.num_slots,
        capacity.max_context,
        prefix_cache("chunk" if args.memory.disable_radix_cache or model.needs_whole_prompts else "radix"),
    )
    channels = Channels(
        requests=Pull(ports.scheduler_input_ipc_name, scheduler_codec()),
        to_detokenizer=Push(ports.detokenizer_ipc_name, detokenizer_codec()),
        to_tokenizer=Push(ports.tokenizer_ipc_name, tokenizer_codec()),
    )
    assembled = assemble(
        worker,
        kv,
        channels,
        _options(args, model, tp_rank),
        _stop_text_maker(tokenizer),
        role=structured.role,
        filler=structured.filler,
    )
    max_len = max_request_len(worker)
    facts = SchedulerFacts(
        max_total_num_tokens=capacity.num_tokens,
        # A model that makes vectors needs no room for an answer.
        max_req_input_len=max_len - (model.pooling is None),
        context_len=model.context_len,
        max_running_requests=capacity.num_slots,
        page_size=capacity.page_size,
        vocab_size=capacity.vocab_size,
        device=worker.device_name,
        dtype=model.dtype,
        attention_backend=worker.attention_backend,
        priorities=args.schedule.enable_priority_scheduling,
        is_embedding=model.pooling is not None,
        memory_usage=capacity.memory_usage,
    )
    return assembled.loop, facts


DTYPE_BYTES = {"float32": 4}
"""Bytes of a number in the KV cache; 2 for the others."""


def _options(args: ServerArgs, model: ModelConfig, tp_rank: int) -> SchedulerOptions:
    schedule = args.schedule
    return SchedulerOptions(
        limits=PrefillLimits(
            max_prefill_tokens=schedule.max_prefill_tokens,
            chunked_prefill_size=None if model.needs_whole_prompts else schedule.prefill_chunk,
        ),
        eos_token_ids=model.eos_token_ids,
        policy=schedule.schedule_policy,
        priorities=schedule.priorities,
        conservativeness=schedule.schedule_conservativeness,
        stream_interval=args.serving.stream_interval,
        cascade=None
        if args.kernels.disable_cascade_attention
        else CascadeCosts.of_model(model.num_heads, model.num_kv_heads, DTYPE_BYTES.get(model.dtype, 2)),
        order=_order(schedule),
        decode_wait_tokens=schedule.decode_wait_tokens,
        overlap=not schedule.disable_overlap_schedule,
        decode_log_interval=args.observability.decode_log_interval,
        rank=tp_rank,
    )


def _order(schedule: ScheduleArgs) -> OrderName:
    """Whether prompts and running requests share steps, or else how long the running wait."""
    if schedule.enable_mixed_chunk:
        return "mixed"
    return "bounded" if schedule.decode_wait_tokens else "prefill_first"


def _structured_output(args: ServerArgs, model: ModelConfig, tokenizer: Tokenizer | None) -> StructuredOutput:
    """Begins to load the grammar library, which goes on while the model is loaded. Raises ConfigError."""
    grammar = args.grammar
    backend = choose_backend(grammar.grammar_backend)
    if tokenizer is None or backend == NO_BACKEND or model.pooling is not None:
        return StructuredOutput.none()
    if backend == "xgrammar" and grammar.constrained_json_whitespace_pattern is not None:
        raise ConfigError(
            "--constrained-json-whitespace-pattern: xgrammar knows no such pattern; give --grammar-backend llguidance "
            "or outlines, or --constrained-json-max-whitespace-cnt."
        )
    assert args.model.tokenizer_path is not None, "there is a tokenizer"
    setup = CompilerSetup(
        backend=backend,
        tokenizer_path=args.model.tokenizer_path,
        vocab_size=model.vocab_size,
        eos_ids=model.eos_token_ids,
        style=JsonStyle(
            any_whitespace=not grammar.constrained_json_disable_any_whitespace,
            max_whitespace=grammar.constrained_json_max_whitespace_cnt,
            whitespace_pattern=grammar.constrained_json_whitespace_pattern,
        ),
        timeout_s=grammar.grammar_compile_timeout,
        at_once=max(2, min(4, usable_cores() // 2)),
    )
    return StructuredOutput.start(setup, tokenizer)


def _stop_text_maker(tokenizer: Tokenizer | None) -> MakeStopText:
    """Requests with stop strings are watched with the tokenizer; without one the front refuses them."""
    if tokenizer is None:
        return _no_tokenizer

    def make(params: SamplingParams) -> StopText:
        return tokenizer.output_text(params.stop, params.stop_regex, skip_special_tokens=params.skip_special_tokens)

    return make


def _no_tokenizer(_params: SamplingParams) -> StopText:
    raise AssertionError("stop strings reached a scheduler without a tokenizer")
