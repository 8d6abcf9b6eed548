"""`mysglang models`: which architectures run; and what a model needs, from its config.json and safetensors headers.

Nothing is loaded, no weight is read and no torch is imported, so it takes a moment for a model of any size. Only for
the name of an architecture of transformers, torch and transformers are imported, because its class has to be asked.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, get_args

import orjson

from mysglang.bench.flags import ToolParser, positive
from mysglang.bench.refused import Failed, Refused
from mysglang.srt.args.resolve import EMBEDDED_MODEL, is_embedded
from mysglang.srt.configs.architectures import ARCHITECTURES, OWN_PACKAGE, Architecture, find_architecture
from mysglang.srt.configs.checkpoint_sizes import DTYPE_BYTES, check_checkpoint, num_parameters
from mysglang.srt.configs.choices import KvCacheDtype
from mysglang.srt.configs.floors import H200, TERA, Ceilings, ModelSizes
from mysglang.srt.configs.foreign import names_in_transformers
from mysglang.srt.configs.model_config import DTYPES, ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.checkpoint_files import find_weights, has_weights, stored_tensors
from mysglang.srt.utils.hardware import GIB, detect_hardware
from mysglang.srt.utils.hf import resolve_model_path

H200_GIB = 139.0
"""Memory that CUDA reports on the device of `floors.H200`."""

WORDS = {"generate": "text", "embed": "vectors", "classify": "scores"}


def make_parser(prog: str) -> ToolParser:
    parser = ToolParser(
        prog,
        "List the architectures that run. With MODEL: its parameters, its memory, how many tokens of KV cache fit, and "
        "the least time of a decode step, before anything is loaded.",
        examples={
            "{prog}": "List the architectures.",
            "{prog} tiny": "The model that is built in.",
            "{prog} Qwen/Qwen3-8B": "On the GPU of this machine, or on one H200 if there is none.",
            "{prog} ./my-model/config.json --memory 24 --bandwidth 1.0": "On a device of 24 GiB that reads 1.0 TB/s.",
        },
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="A directory, its config.json, or a name on Hugging Face; tiny is the model that is built in. A "
        "config.json alone is enough. Or the name of an architecture, to see whether it runs.",
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object instead of text.")
    part = parser.add_argument_group("device")
    part.add_argument("--memory", type=_positive_number, metavar="GIB", help="Memory of the device in GiB.")
    part.add_argument(
        "--bandwidth",
        type=_positive_number,
        metavar="TB_S",
        help="Memory bandwidth of the device, in 10^12 bytes a second. "
        f"Default: {H200.read / TERA:g}, measured on an H200.",
    )
    part.add_argument(
        "--tflops",
        type=_positive_number,
        metavar="TFLOP_S",
        help="Speed of bf16 matrix products on the device, in 10^12 operations a second. "
        "Default: that of the H200, or with --bandwidth no limit.",
    )
    part.add_argument(
        "--mem-fraction-static",
        type=_fraction,
        default=0.9,
        metavar="FRACTION",
        help="Share of the memory for weights and KV cache.",
    )
    part = parser.add_argument_group("load")
    part.add_argument(
        "--dtype", choices=["auto", *DTYPES], default="auto", help="Data type of weights and activations."
    )
    part.add_argument(
        "--kv-cache-dtype", choices=get_args(KvCacheDtype), default="auto", help="Data type of the KV cache."
    )
    part.add_argument(
        "--batch-size", type=positive, nargs="+", default=[1, 8, 64, 256], help="Number of requests in a step."
    )
    part.add_argument("--input-len", type=positive, default=1024, metavar="TOKENS", help="Tokens of each request.")
    part.add_argument(
        "--swa-full-tokens-ratio",
        type=_fraction,
        default=0.8,
        metavar="RATIO",
        help="Share of the tokens that layers with a sliding window keep, as for `serve`.",
    )
    part.add_argument(
        "--mamba-full-memory-ratio",
        type=_ratio,
        default=0.9,
        metavar="RATIO",
        help="Memory of states for each byte of KV cache, in a model whose layers keep a state for each request.",
    )
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    parser = make_parser(prog)
    options = parser.parse_all(argv)
    try:
        listed = architectures()
        foreign = names_in_transformers() - set(listed)
        row = None if options.model is None else architecture_named(options.model, foreign)
        if of_one := options.model is not None and row is None:
            if (problem := _stranger(options.model, [*listed, *foreign])) is not None:
                raise Failed(problem)
            found = of_model(options)
        else:
            _refuse_figures(parser, options)
            found = listed if row is None else {options.model: row}
    except ConfigError as error:
        raise Failed(*error.problems) from None
    if options.json:
        print(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
    else:
        print(_card(found) if of_one else _list(found, len(foreign) if options.model is None else 0))
    return 0


def _refuse_figures(parser: ToolParser, options: argparse.Namespace) -> None:
    """Raises Refused if options for the figures of a model are given where architectures are listed."""
    given = [
        action.option_strings[0]
        for action in parser._actions
        if action.dest not in ("help", "model", "json") and getattr(options, action.dest) != action.default
    ]
    if given:
        raise Refused(f"{', '.join(given)}: only with a MODEL, whose memory and time the command then shows.")


def _stranger(model: str, listed: Collection[str]) -> str | None:
    """Returns an error message if `model` is neither a path nor the name of a repository; else None."""
    if _is_place(model):
        return None
    close = difflib.get_close_matches(model, listed, n=2)
    hint = f"; did you mean {' or '.join(close)}?" if close else "; `mysglang models` lists the architectures."
    return f"{model} is not a path here, a repository (OWNER/NAME), or an architecture that runs{hint}"


def _is_place(model: str) -> bool:
    """True if `model` names files: a path here, a repository, or the model that is built in."""
    return "/" in model or is_embedded(model) or os.path.exists(os.path.expanduser(model))


def architectures() -> dict[str, Any]:
    """Returns the architectures with code of mysglang: name -> its task, whether it is an encoder, and whose code
    computes it.
    """
    return {name: _row(each) for name, each in ARCHITECTURES.items()}


def _row(architecture: Architecture) -> dict[str, Any]:
    code = "mysglang" if architecture.package == OWN_PACKAGE else architecture.package
    return {"task": architecture.task, "encoder": architecture.encoder, "code": code}


def architecture_named(name: str, foreign: Collection[str]) -> dict[str, Any] | None:
    """Returns the row of an architecture that is built in, or that an installed package or transformers has. None if
    `name` is no architecture. Raises ConfigError if it does not run.
    """
    if _is_place(name):
        return None
    if (known := find_architecture(name)) is not None:
        return _row(known)
    return foreign_architecture(name) if name in foreign else None


def foreign_architecture(name: str) -> dict[str, Any]:
    """Returns a row as in `architectures` for a class that transformers has. Raises ConfigError if its code is not
    served.
    """
    from mysglang.srt.models.registry import how_served

    found = how_served(name)
    if found.by == "nobody":
        raise ConfigError(f"{name} does not run: {found.reason}")
    condition = {"condition": found.reason} if found.reason else {}
    return {"task": "generate", "encoder": False, "code": found.by, **condition}


def of_model(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of one model. Raises ConfigError for what cannot be served."""
    path = str(EMBEDDED_MODEL) if is_embedded(options.model) else options.model
    path = path.removesuffix("/config.json") if Path(path).is_file() else path
    folder = resolve_model_path("." if path == "config.json" else path, load_format="dummy")
    config = ModelConfig.from_path(str(folder), dtype=options.dtype)
    stored = _stored(folder, config)
    memory, place = _memory(options.memory)
    parameters = stored["parameters"] if stored else num_parameters(config)
    weight_bytes = parameters * DTYPE_BYTES.get(config.dtype, 2)
    room = memory * GIB * options.mem_fraction_static - weight_bytes
    return {
        "model": options.model,
        "architecture": config.architecture,
        "task": config.served_as.task,
        "dtype": config.dtype,
        "layers": config.num_layers,
        "context_length": config.context_len,
        "vocab_size": config.vocab_size,
        "checkpoint": stored or None,
        "parameters": parameters,
        "weight_bytes": weight_bytes,
        "memory_gib": memory,
        "memory_of": place,
        "mem_fraction_static": options.mem_fraction_static,
        "fits": room > 0,
        **({} if config.decoder is None else _decoder(config, options, room)),
    }


def _stored(folder: Path, config: ModelConfig) -> dict[str, int]:
    """Returns the checkpoint's facts from the headers of its files; empty for a directory with a config.json only."""
    paths = find_weights(folder).paths if has_weights(folder) else ()
    if not paths:
        return {}
    tensors = stored_tensors(folder)
    check_checkpoint(config, tensors)
    return {
        "files": len(paths),
        "file_bytes": sum(path.stat().st_size for path in paths),
        "parameters": sum(tensor.num_values for tensor in tensors),
    }


def _memory(given: float | None) -> tuple[float, str]:
    """Returns the memory in GiB, and words that say where the figure comes from."""
    if given is not None:
        return given, "as given"
    gpus = detect_hardware().gpu_memory
    return (min(gpus), "the GPU of this machine") if gpus else (H200_GIB, "an H200; give yours with --memory")


def _decoder(config: ModelConfig, options: argparse.Namespace, room: float) -> dict[str, Any]:
    sizes = ModelSizes.of(config, options.kv_cache_dtype)
    per_token = sizes.kv_token_bytes(options.swa_full_tokens_ratio)
    states = 0
    if sizes.state_bytes:
        share = options.mamba_full_memory_ratio / (1 + options.mamba_full_memory_ratio) if per_token else 1.0
        # One more entry belongs to padding.
        states = max(0, int(room * share / sizes.state_bytes) - 1)
        room -= (states + 1) * sizes.state_bytes
    tokens = max(0, int(room / per_token)) if per_token else None
    stated = options.bandwidth
    ceilings = _ceilings(stated, options.tflops)
    context = min(options.input_len, config.context_len)
    steps = []
    for rows in options.batch_size:
        seconds = sizes.decode_step(rows, context).seconds(ceilings)
        fits = (tokens is None or rows * context <= tokens) and (not sizes.state_bytes or rows <= states)
        steps.append({"batch_size": rows, "ms": seconds * 1e3, "tokens_per_s": rows / seconds, "fits": fits})
    return {
        "active_parameters": sizes.active_parameters,
        "kv_token_bytes": per_token,
        "kv_tokens": tokens,
        **({"state_bytes": sizes.state_bytes, "states": states} if sizes.state_bytes else {}),
        "full_contexts": None if tokens is None else tokens / config.context_len,
        "bandwidth_tb_s": ceilings.read / TERA,
        "bandwidth_of": "an H200, measured" if stated is None else "as given",
        "input_len": context,
        "decode_steps": steps,
    }


def _ceilings(bandwidth: float | None, tflops: float | None) -> Ceilings:
    """Returns the ceilings of a device with this bandwidth. Without `tflops`, nothing is assumed about how fast it
    multiplies.
    """
    multiplies = math.inf if bandwidth is not None else H200.gemm
    read = H200.read if bandwidth is None else bandwidth * TERA
    return Ceilings(read, multiplies if tflops is None else tflops * TERA, attention=math.inf)


def _list(found: dict[str, Any], more: int) -> str:
    """Returns a table. more: architectures that it leaves out, because only transformers' code may serve them."""
    lines = [f"{'architecture':<40} gives"]
    for name, row in found.items():
        code = "" if row["code"] == "mysglang" else f", by code of {row['code']}"
        lines.append(f"{name:<40} {WORDS[row['task']]}{code}")
        lines += [f"  {row['condition']}"] if "condition" in row else []
    notes = ["The name is under `architectures` in a model's config.json."]
    if more:
        notes += [
            f"{more} others are in transformers, whose code serves many of them:",
            "`mysglang models NAME` says whether one runs, or why not.",
        ]
    return "\n".join([*lines, "", *notes])


def _card(found: dict[str, Any]) -> str:
    """Returns the figures in lines of at most 100 characters."""
    stored = found["checkpoint"]
    files = (
        "config.json alone" if stored is None else f"{_counted(stored['files'])}, {stored['file_bytes'] / GIB:.2f} GiB"
    )
    lines = [
        _line("architecture", f"{found['architecture']} ({WORDS[found['task']]}), {found['layers']} layers"),
        _line("context length", f"{found['context_length']} tokens"),
        _line("checkpoint", files),
        _line("parameters", _large(found["parameters"])),
        _line("weights", f"{found['weight_bytes'] / GIB:.2f} GiB in {found['dtype']}"),
        _line("memory", f"{found['memory_gib']:.1f} GiB ({found['memory_of']})"),
    ]
    share = found["mem_fraction_static"]
    if not found["fits"]:
        lines.append(_line("fits", f"no: the weights need more than {share:.0%} of the memory"))
    if "kv_tokens" not in found:
        return "\n".join(lines)
    if found["active_parameters"] < found["parameters"] / 2:
        lines.insert(4, _line("used by one token", _large(found["active_parameters"])))
    if found["kv_tokens"] is None:
        lines.append(_line("KV cache", "none: no layer attends over keys"))
    else:
        lines += [
            _line("KV cache", f"{found['kv_token_bytes'] / 1024:.1f} KiB for each token"),
            _line("", f"{found['kv_tokens']} tokens fit beside the weights in {share:.0%} of the memory,"),
            _line("", f"which is {found['full_contexts']:.1f} requests of full length"),
        ]
    if "states" in found:
        each = found["state_bytes"] / (1 << 20)
        lines.append(_line("states", f"{each:.2f} MiB for each request; {found['states']} fit, checkpoints included"))
    if found["fits"]:
        lines += ["", *_steps(found)]
    return "\n".join(lines)


def _steps(found: dict[str, Any]) -> list[str]:
    rate = f"{found['bandwidth_tb_s']:.2f} TB/s ({found['bandwidth_of']})"
    lines = [
        f"A decode step takes at least so long, with {found['input_len']} tokens for each request, at {rate}:",
        f"{'requests':>10} {'ms':>9} {'tokens/s':>10}",
    ]
    for step in found["decode_steps"]:
        note = "" if step["fits"] else "   more than the memory holds"
        lines.append(f"{step['batch_size']:>10} {step['ms']:>9.3f} {step['tokens_per_s']:>10.0f}{note}")
    return lines


def _line(name: str, value: str) -> str:
    return f"{name:<18} {value}"


def _counted(files: int) -> str:
    return "1 file" if files == 1 else f"{files} files"


def _large(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.2f} million"


def _positive_number(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number above 0")
    return value


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1000")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value
