"""The formats of tool calls, by the names of `--tool-call-parser`, and how a chat template shows which one it uses."""

from __future__ import annotations

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.function_call.base_detector import FunctionCallDetector
from mysglang.srt.function_call.gemma4_detector import Gemma4Detector
from mysglang.srt.function_call.json_detectors import (
    Apertus2509Detector,
    CohereCommand4Detector,
    GigaChat3Detector,
    GptOssDetector,
    HermesDetector,
    InternlmDetector,
    Llama32Detector,
    MistralDetector,
    Phi4MiniDetector,
)
from mysglang.srt.function_call.minimax_m3_detector import MinimaxM3Detector
from mysglang.srt.function_call.named_json_detectors import DeepSeekV3Detector, DeepSeekV31Detector, KimiK2Detector
from mysglang.srt.function_call.pythonic_detector import Lfm2Detector, PythonicDetector
from mysglang.srt.function_call.tagged_detectors import (
    DeepSeekV4Detector,
    DeepSeekV32Detector,
    Glm4MoeDetector,
    HunyuanDetector,
    MinimaxM2Detector,
    Qwen3CoderDetector,
    Step3Detector,
)

DETECTORS: dict[str, type[FunctionCallDetector]] = {
    "apertus2509": Apertus2509Detector,
    "cohere_command4": CohereCommand4Detector,
    "deepseekv3": DeepSeekV3Detector,
    "deepseekv31": DeepSeekV31Detector,
    "deepseekv32": DeepSeekV32Detector,
    "deepseekv4": DeepSeekV4Detector,
    "gemma4": Gemma4Detector,
    "gigachat3": GigaChat3Detector,
    "glm": Glm4MoeDetector,
    "glm45": Glm4MoeDetector,
    "glm47": Glm4MoeDetector,
    "gpt-oss": GptOssDetector,
    "hermes": HermesDetector,
    "hunyuan": HunyuanDetector,
    "internlm": InternlmDetector,
    "interns1": InternlmDetector,
    "kimi_k2": KimiK2Detector,
    "lfm2": Lfm2Detector,
    "llama3": Llama32Detector,
    "mimo": Qwen3CoderDetector,
    "minimax-m2": MinimaxM2Detector,
    "minimax-m3": MinimaxM3Detector,
    "mistral": MistralDetector,
    "phi4-mini": Phi4MiniDetector,
    "pythonic": PythonicDetector,
    "qwen": HermesDetector,
    "qwen25": HermesDetector,
    "qwen3_coder": Qwen3CoderDetector,
    "step3": Step3Detector,
    "step3p5": Qwen3CoderDetector,
}
"""SGLang's names, and vLLM's where SGLang has none."""

# Marks that together only templates of this format contain. A format whose templates also contain another's marks comes
# before it. Templates put marks together out of pieces, so that a mark is no longer than needed.
_SIGNS: tuple[tuple[tuple[str, ...], str | None], ...] = (
    (("｜DSML｜", "function_calls>"), "deepseekv32"),
    (("｜DSML｜",), "deepseekv4"),
    (("<|START_ACTION|>",), "cohere_command4"),
    (("<|tools_prefix|>",), "apertus2509"),
    (("<|tool_call>",), "gemma4"),
    (("<tool_sep>", "<arg_key>"), "hunyuan"),
    (("function call<|role_sep|>",), "gigachat3"),
    (("'function call'", "<|role_sep|>"), "gigachat3"),
    (("<|function_call|>",), "gigachat3"),
    # A fence alone occurs in templates of other formats too.
    (("```json", "<｜tool▁sep｜>"), "deepseekv3"),
    (("<｜tool▁sep｜>",), "deepseekv31"),
    (("<|tool_call_argument_begin|>",), "kimi_k2"),
    (("<steptml:invoke",), "step3"),
    (("]<]minimax[>[",), "minimax-m3"),
    (("<minimax:tool_call>",), "minimax-m2"),
    (("<arg_key>",), "glm45"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("<|channel|>",), "gpt-oss"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|action_start|>",), "interns1"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|tool_list_start|>",), "lfm2"),
    (("<|python_start|>",), "pythonic"),
    (("functools",), "phi4-mini"),
    (("<|tool_call|>",), "phi4-mini"),
    (("<tool_call>",), "qwen25"),
    (('"tool_name": ',), None),  # Command R: a list behind "Action:", with a call for plain answers as well
    (("<|python_tag|>",), "llama3"),
    (('"parameters": ',), "llama3"),
)


def detector_class(name: str) -> type[FunctionCallDetector]:
    """Returns the detector class of that name. Raises InvalidRequest for an unknown name."""
    if name not in DETECTORS:
        known = ", ".join(DETECTORS)
        raise InvalidRequest(f"tool_call_parser must be one of {known}; got {name!r}.", param="tool_call_parser")
    return DETECTORS[name]


def format_of(template: str) -> str | None:
    """Returns the name of the format that a chat template shows calls in; None if it shows none that is known."""
    if "tool" not in template:
        return None
    return next((name for signs, name in _SIGNS if all(sign in template for sign in signs)), None)
