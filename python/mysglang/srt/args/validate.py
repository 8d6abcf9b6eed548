"""Rules for resolved options, as a table. All violations are reported at once, each with a remedy.

The range and choices of a single option stand with the option (`arg(at_least=…)`); here is what concerns several, or
the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from mysglang.srt.args.field import flag_of
from mysglang.srt.args.folders import complaints_about as complaints_about_folders
from mysglang.srt.args.groups import ArgGroups, option_named
from mysglang.srt.args.hicache import OTHER_STORAGE_BACKENDS, STORAGE_BACKENDS
from mysglang.srt.args.hicache import complaint_about as hicache_complaint
from mysglang.srt.args.kv_events import complaint_about
from mysglang.srt.args.parsers import REASONING_PARSERS
from mysglang.srt.args.schedule import CHUNKING_OFF, ScheduleArgs
from mysglang.srt.args.serving import ServingArgs
from mysglang.srt.args.tls import complaint_about as tls_complaint
from mysglang.srt.args.tracing import complaint_about as tracing_complaint
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.hardware import Hardware
from mysglang.srt.utils.hf import GGUF_NAMES, is_url

_ORIGIN = re.compile(r"https?://[\w.:\[\]-]+")
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_REPOSITORY = re.compile(r"\w[\w.-]*/[\w.-]+(/[\w.-]+\.gguf)?")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that options must keep. `broken` returns whether they break it; `say` returns the line for the user."""

    broken: Callable[[ArgGroups, Hardware], bool]
    say: Callable[[ArgGroups], str]


def _complaint_rule(complaint: Callable[[ArgGroups], str | None]) -> Rule:
    """Returns the rule that `complaint` must return no line."""
    return Rule(lambda a, _: complaint(a) is not None, lambda a: str(complaint(a)))


def _file_rule(name: str) -> Rule:
    """Returns the rule that the option of that name, in the group `serving`, must be a file if it is given."""

    def path(args: ArgGroups) -> str | None:
        given: str | None = getattr(args.serving, name)
        return given

    return Rule(
        lambda a, _: (given := path(a)) is not None and not Path(given).is_file(),
        lambda a: f"{flag_of(name)} {path(a)}: there is no such file.",
    )


RULES = (
    Rule(
        lambda a, _: a.observability.crash_dump_contents and a.observability.crash_dump_folder is None,
        lambda a: "--crash-dump-contents needs --crash-dump-folder.",
    ),
    Rule(
        lambda a, _: a.observability.crash_dump_folder is not None and a.serving.tokenizer_worker_num > 1,
        lambda a: "--crash-dump-folder needs --tokenizer-worker-num 1: other fronts keep no requests for it.",
    ),
    _complaint_rule(lambda a: tracing_complaint(a.observability)),
    Rule(
        lambda a, _: a.parallel.num_ranks > 1 and bool(alone_only(a)),
        lambda a: f"{_several(a)}: not together with {'; nor with '.join(alone_only(a))}.",
    ),
    Rule(
        lambda a, hardware: a.parallel.device == "cuda" and hardware.num_gpus <= _last_gpu(a),
        lambda a: (
            f"--device cuda: no NVIDIA GPU {_last_gpu(a)} is visible; "
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or give --device cpu."
        ),
    ),
    Rule(
        lambda a, _: a.kernels.torch_compile_max_bs is not None and not a.kernels.enable_torch_compile,
        lambda _: "--torch-compile-max-bs needs --enable-torch-compile.",
    ),
    Rule(
        lambda a, _: a.model.quantization is not None and a.parallel.device != "cpu",
        lambda a: f"--quantization {a.model.quantization} has kernels for --device cpu only; leave it out.",
    ),
    Rule(
        lambda a, _: a.memory.mamba_ssm_dtype == "bfloat16" and a.kernels.enable_deterministic_inference,
        lambda _: (
            "--mamba-ssm-dtype bfloat16 cannot be combined with --enable-deterministic-inference: how often a state "
            "is rounded depends on how a prompt is cut."
        ),
    ),
    Rule(
        lambda a, _: a.model.quantization is not None and a.kernels.enable_deterministic_inference,
        lambda a: f"--quantization {a.model.quantization} cannot be combined with --enable-deterministic-inference.",
    ),
    _complaint_rule(lambda a: a.speculative.complaint()),
    Rule(
        lambda a, _: (
            a.speculative.speculative_draft_model_path is not None
            and not _found(a.speculative.speculative_draft_model_path)
        ),
        lambda a: _not_found("--speculative-draft-model-path", a.speculative.speculative_draft_model_path),
    ),
    Rule(
        lambda a, _: a.model.is_embedding and bool(generating_only(a)),
        lambda a: f"--is-embedding: {', '.join(generating_only(a))}: only for models that generate; leave it out.",
    ),
    Rule(
        lambda a, _: a.speculative.speculative_algorithm == "STANDALONE" and a.hicache.enable_hierarchical_cache,
        lambda _: (
            "--enable-hierarchical-cache: not with --speculative-algorithm STANDALONE, since the host keeps no keys "
            "and values of a draft model; leave one of them out."
        ),
    ),
    Rule(
        lambda a, _: not (_found(a.model.model_path) or is_url(str(a.model.model_path))),
        lambda a: _not_found("--model-path", a.model.model_path),
    ),
    Rule(
        lambda a, _: a.model.tokenizer_path != a.model.model_path and not _found(a.model.tokenizer_path),
        lambda a: _not_found("--tokenizer-path", a.model.tokenizer_path),
    ),
    Rule(
        lambda a, _: not _is_json_object(a.model.json_model_override_args),
        lambda a: f"--json-model-override-args must be a JSON object, got {a.model.json_model_override_args!r}.",
    ),
    Rule(
        lambda a, _: _looks_like_file(a.serving.chat_template) and not Path(str(a.serving.chat_template)).is_file(),
        lambda a: f"--chat-template {a.serving.chat_template}: there is no such file.",
    ),
    _complaint_rule(lambda a: a.serving.key_complaint()),
    Rule(
        lambda a, _: a.serving.key_complaint() is None and a.serving.keys().count(a.serving.admin_api_key or "") > 0,
        lambda _: (
            "--admin-api-key must differ from the API keys of clients; otherwise any client could change the server."
        ),
    ),
    Rule(
        lambda a, _: _ROOT_PATH.fullmatch(a.serving.fastapi_root_path) is None,
        lambda a: (
            f"--fastapi-root-path {a.serving.fastapi_root_path}: give an ASCII path such as /models/tiny, "
            "without a slash at its end."
        ),
    ),
    Rule(
        lambda a, _: a.model.skip_tokenizer_init and bool(_about_text(a.serving)),
        lambda a: (
            f"{' and '.join(_about_text(a.serving))} cannot be combined with --skip-tokenizer-init, which leaves no "
            "text to work on."
        ),
    ),
    Rule(
        lambda a, _: (a.serving.ssl_certfile is None) != (a.serving.ssl_keyfile is None),
        lambda _: "--ssl-certfile and --ssl-keyfile must be given together.",
    ),
    Rule(
        lambda a, _: (
            a.serving.ssl_certfile is None
            and (a.serving.ssl_ca_certs is not None or a.serving.ssl_keyfile_password is not None)
        ),
        lambda _: "--ssl-ca-certs and --ssl-keyfile-password need --ssl-certfile and --ssl-keyfile.",
    ),
    *map(_file_rule, ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")),
    _complaint_rule(lambda a: tls_complaint(a.serving)),
    Rule(
        lambda a, _: not all(map(_is_origin, a.serving.cors_allow_origins)),
        lambda a: f"--cors-allow-origins {' '.join(a.serving.cors_allow_origins)}: give https://host[:port], or *.",
    ),
    Rule(
        lambda a, _: not _is_reasoning_parser(a.serving.reasoning_parser),
        lambda a: (
            f"--reasoning-parser {a.serving.reasoning_parser}: give one of {', '.join(REASONING_PARSERS)}, "
            "or two tags as <start>...<end>."
        ),
    ),
    Rule(
        lambda a, _: a.schedule.schedule_low_priority_values_first and not a.schedule.has_priorities,
        lambda _: "--schedule-low-priority-values-first needs --enable-priority-scheduling.",
    ),
    Rule(
        lambda a, _: (
            not a.schedule.has_priorities
            and a.schedule.priority_scheduling_preemption_threshold
            != ScheduleArgs().priority_scheduling_preemption_threshold
        ),
        lambda _: "--priority-scheduling-preemption-threshold needs --enable-priority-scheduling.",
    ),
    Rule(
        lambda a, _: complaint_about(a.observability.kv_events_config) is not None,
        lambda a: f"--kv-events-config: {complaint_about(a.observability.kv_events_config)}.",
    ),
    Rule(
        lambda a, _: a.observability.kv_events_config is not None and a.memory.disable_radix_cache,
        lambda _: (
            "--kv-events-config cannot be combined with --disable-radix-cache, which leaves no prefixes to report."
        ),
    ),
    Rule(
        lambda a, _: (
            a.memory.quantization_param_path is not None and a.memory.kv_cache_dtype not in ("auto", "fp8_e4m3")
        ),
        lambda a: f"--quantization-param-path: its scales are not for --kv-cache-dtype {a.memory.kv_cache_dtype}.",
    ),
    Rule(
        lambda a, _: (
            a.memory.quantization_param_path is not None and not Path(a.memory.quantization_param_path).is_file()
        ),
        lambda a: f"--quantization-param-path {a.memory.quantization_param_path}: there is no such file.",
    ),
    Rule(
        lambda a, _: a.memory.radix_eviction_policy == "priority" and not a.schedule.has_priorities,
        lambda _: "--radix-eviction-policy priority needs --enable-priority-scheduling.",
    ),
    Rule(
        lambda a, _: a.memory.radix_eviction_policy != "lru" and a.memory.disable_radix_cache,
        lambda _: (
            "--radix-eviction-policy cannot be combined with --disable-radix-cache, which leaves nothing to evict."
        ),
    ),
    Rule(
        lambda a, _: a.memory.swa_full_tokens_ratio is not None and a.memory.disable_hybrid_swa_memory,
        lambda _: (
            "--swa-full-tokens-ratio cannot be combined with --disable-hybrid-swa-memory, which leaves one pool "
            "for all layers."
        ),
    ),
    Rule(
        lambda a, _: (
            a.grammar.enable_jump_forward and a.memory.disable_radix_cache and not a.speculative.speculative_algorithm
        ),
        lambda _: (
            "--enable-jump-forward cannot be combined with --disable-radix-cache: each jump would compute the whole "
            "prompt again."
        ),
    ),
    Rule(
        lambda a, _: a.grammar.enable_jump_forward and a.grammar.grammar_backend == "none",
        lambda _: (
            "--enable-jump-forward cannot be combined with --grammar-backend none, which leaves no grammar to follow."
        ),
    ),
    Rule(
        lambda a, _: a.hicache.enable_hierarchical_cache and a.memory.disable_radix_cache,
        lambda _: (
            "--enable-hierarchical-cache cannot be combined with --disable-radix-cache, which leaves no prefixes to "
            "keep."
        ),
    ),
    Rule(
        lambda a, _: a.hicache.hicache_storage_backend not in (None, *STORAGE_BACKENDS),
        lambda a: f"--hicache-storage-backend {a.hicache.hicache_storage_backend}: {_no_storage_backend(a)}.",
    ),
    Rule(
        lambda a, _: a.hicache.hicache_storage_backend == "file" and not a.hicache.storage_path,
        lambda _: (
            "--hicache-storage-backend file needs a directory, such as --hicache-storage-backend-extra-config "
            '\'{"path": "/var/cache/kv"}\'.'
        ),
    ),
    Rule(
        lambda a, _: hicache_complaint(a.hicache.hicache_storage_backend_extra_config) is not None,
        lambda a: (
            "--hicache-storage-backend-extra-config: "
            f"{hicache_complaint(a.hicache.hicache_storage_backend_extra_config)}."
        ),
    ),
    Rule(
        lambda a, _: a.schedule.chunked_prefill_size == 0,
        lambda _: f"--chunked-prefill-size 0: give a number of tokens, or {CHUNKING_OFF} to compute prompts whole.",
    ),
    Rule(
        lambda a, _: a.schedule.enable_mixed_chunk and a.schedule.chunked_prefill_size == CHUNKING_OFF,
        lambda _: (
            f"--enable-mixed-chunk cannot be combined with --chunked-prefill-size {CHUNKING_OFF}, which leaves no "
            "chunks to mix."
        ),
    ),
    # Chunks end at page borders, so one must hold a page at least.
    Rule(
        lambda a, _: 0 < (a.schedule.chunked_prefill_size or 0) < a.memory.page_size,
        lambda a: f"--chunked-prefill-size must be at least --page-size ({a.memory.page_size}).",
    ),
    Rule(
        lambda a, _: a.schedule.max_prefill_tokens < a.memory.page_size,
        lambda a: f"--max-prefill-tokens must be at least --page-size ({a.memory.page_size}).",
    ),
    Rule(
        lambda a, _: a.memory.page_size & (a.memory.page_size - 1) != 0,
        lambda a: f"--page-size {a.memory.page_size}: give a power of two.",
    ),
    Rule(
        lambda a, _: a.memory.max_total_tokens is not None and a.memory.max_total_tokens < 2 * a.memory.page_size,
        lambda a: f"--max-total-tokens must be at least two pages ({2 * a.memory.page_size}).",
    ),
)


def _last_gpu(groups: ArgGroups) -> int:
    """Returns the number of the last rank's GPU."""
    return groups.parallel.gpus[-1]


def _several(groups: ArgGroups) -> str:
    """Returns the options that ask for more than one rank, as text for an error."""
    sizes = {"--tp-size": groups.parallel.tp_size, "--pp-size": groups.parallel.pp_size}
    return " ".join(f"{flag} {size}" for flag, size in sizes.items() if size > 1)


def alone_only(groups: ArgGroups) -> list[str]:
    """Returns the options in use that need a single rank, each with the reason."""
    stages = groups.parallel.pp_size > 1
    given = {
        "--speculative-algorithm STANDALONE, whose draft model no single stage could run: the first stage embeds the "
        "drafts and the last one judges them (give NGRAM, or --tp-size instead of --pp-size)": stages
        and groups.speculative.speculative_algorithm == "STANDALONE",
        "--enable-deterministic-inference, which is not made for stages in this version": stages
        and groups.kernels.enable_deterministic_inference,
    }
    return [flag for flag, is_given in given.items() if is_given]


def generating_only(groups: ArgGroups) -> list[str]:
    """Returns the options in use that are only for models that generate."""
    given = {
        "--enable-deterministic-inference": groups.kernels.enable_deterministic_inference,
        "--enable-hierarchical-cache": groups.hicache.enable_hierarchical_cache,
        "--speculative-algorithm": groups.speculative.speculative_algorithm is not None,
    }
    return [flag for flag, is_given in given.items() if is_given]


def validate(groups: ArgGroups, hardware: Hardware, given: Collection[str] = ()) -> None:
    """Raise ConfigError with a line for every rule that `groups` breaks. `given`: names and aliases of the options that
    the user gave, be it with their default values.
    """
    # Rules may compare values, so they are asked only where every value has its type and range.
    problems = [*groups.bad_values()] or [
        *_broken(groups, hardware),
        *complaints_about_folders(groups.storage, groups.observability, groups.hicache),
        *_without_effect(groups, given),
    ]
    if problems:
        raise ConfigError(*problems)


def _no_storage_backend(groups: ArgGroups) -> str:
    known = groups.hicache.hicache_storage_backend in OTHER_STORAGE_BACKENDS
    reason = "this version does not support it" if known else "there is no such backend"
    return f"{reason}; give {' or '.join(STORAGE_BACKENDS)}"


def _broken(groups: ArgGroups, hardware: Hardware) -> Iterator[str]:
    return (rule.say(groups) for rule in RULES if rule.broken(groups, hardware))


def _without_effect(groups: ArgGroups, given: Collection[str]) -> Iterator[str]:
    """Yields a line for each given option that has no effect, since the option that it needs is off."""
    values = groups.flat()
    for name in given:
        option = option_named(name)
        if option is not None and option.needs is not None and values[option.needs] in (None, False):
            yield f"{option.flag} needs {flag_of(option.needs)}."


def _found(path: str | None) -> bool:
    """True if the path is a directory or a GGUF file, or may name a repository or a file in one."""
    if path is None:
        return False
    here = Path(path).is_dir() or (path.endswith(".gguf") and Path(path).is_file())
    return here or _REPOSITORY.fullmatch(path) is not None


def _not_found(flag: str, path: str | None) -> str:
    if path is not None and Path(path).is_file():
        return f"{flag} {path}: this is a file; give the directory with config.json and the weights."
    if path is not None and path.endswith(".gguf"):
        return f"{flag} {path}: there is no such file; {GGUF_NAMES}."
    return f"{flag} {path}: there is no such directory, and a Hugging Face repository would be named OWNER/NAME."


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _is_origin(text: str) -> bool:
    return text == "*" or _ORIGIN.fullmatch(text) is not None


def _about_text(serving: ServingArgs) -> list[str]:
    """Returns the given options that concern text: how it becomes tokens, and tokens an answer."""
    given = {
        "chat_template": serving.chat_template is not None,
        "completion_template": serving.completion_template not in ("auto", "none"),
        "tool_call_parser": serving.tool_call_parser not in ("auto", "none"),
        "reasoning_parser": serving.reasoning_parser not in (None, "auto", "none"),
    }
    return [flag_of(name) for name, is_given in given.items() if is_given]


def _is_reasoning_parser(name: str | None) -> bool:
    return name is None or name in REASONING_PARSERS or all(map(str.strip, name.partition("...")))


def _looks_like_file(template: str | None) -> bool:
    return template is not None and ("/" in template or template.endswith((".jinja", ".json")))
