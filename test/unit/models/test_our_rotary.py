"""Which models of transformers rotate queries and keys by our kernel, and when they do."""

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from fixtures.foreign_checkpoints import FOREIGN
from fixtures.tiny_checkpoints import FAMILIES, SIZES
from mysglang.srt.models.transformers_backend.interface import NAME, NoCache, Rotate, attending
from mysglang.srt.models.transformers_backend.plain_attention import PlainAttention
from mysglang.srt.models.transformers_backend.probe import probe
from mysglang.srt.models.transformers_backend.rotary import OurRotary, _rotates, use_our_rotary


class Counting(PlainAttention):
    """Counts the calls that our kernel would answer."""

    turned = 0

    def turn(self, theirs: Rotate, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        self.turned += 1
        return theirs(q, k, cos, sin)


def model_of(config: PretrainedConfig) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    return model


def functions(model: nn.Module) -> list[OurRotary]:
    """Ours, once for each module that calls them."""
    forwards = [module.forward for module in model.modules() if isinstance(module.forward, MethodType)]
    own = [forward.__func__ for forward in forwards if isinstance(forward.__func__, FunctionType)]
    return [each for forward in own for each in forward.__globals__.values() if isinstance(each, OurRotary)]


def turned_in(model: nn.Module) -> int:
    """Calls for our kernel in a pass of five tokens."""
    with torch.device("meta"):
        hollow = AutoModelForCausalLM.from_config(model.config, attn_implementation=NAME)
    counting = Counting([call.spec for call in probe(hollow)], runs=[(0, 5)])
    ids = torch.arange(5)[None]
    with attending(counting), torch.no_grad():
        model(input_ids=ids, position_ids=ids, past_key_values=NoCache(), use_cache=True)
    return counting.turned


@pytest.mark.parametrize(
    ("make", "found", "turned"),
    [
        (FAMILIES["llama"], 3, 3),
        (FOREIGN["apertus"], 3, 3),
        (FOREIGN["vaultgemma"], 3, 3),
        # A quarter of each head, and all of it.
        (FOREIGN["gpt_neox"], 3, 0),
        (lambda: transformers.GPTNeoXConfig(**SIZES, rotary_pct=1.0), 3, 3),
        # Neighbours turn together.
        (FAMILIES["cohere"], 0, 0),
    ],
    ids=["llama", "apertus", "vaultgemma", "gpt_neox", "gpt_neox, whole heads", "cohere"],
)
def test_what_a_function_computes_decides(make: Callable[[], PretrainedConfig], found: int, turned: int) -> None:
    model = model_of(make())
    use_our_rotary(model)
    assert len(functions(model)) == found
    assert turned_in(model) == turned


def test_other_models_keep_their_functions() -> None:
    """Functions that are replaced for one model stay in transformers' files."""
    one, other = model_of(FAMILIES["llama"]()), model_of(FAMILIES["llama"]())
    use_our_rotary(one)
    assert not functions(other) and turned_in(other) == 0
    assert all(each.theirs is apply_rotary_pos_emb for each in functions(one))


def arguments(**changes: Any) -> list[Any]:
    given = {"q": (1, 4, 3, 8), "k": (1, 2, 3, 8), "cos": (1, 3, 8), "sin": (1, 3, 8)} | changes
    return [torch.randn(shape) if isinstance(shape, tuple) else shape for shape in given.values()]


@pytest.mark.parametrize(
    "given",
    [
        arguments(q=(2, 4, 3, 8), k=(2, 2, 3, 8), cos=(2, 3, 8), sin=(2, 3, 8)),
        arguments(cos=(1, 1, 8), sin=(1, 1, 8)),
        arguments(cos=torch.randn(1, 3, 8).double(), sin=torch.randn(1, 3, 8).double()),
        arguments(cos=torch.randn(1, 3, 16)[..., ::2]),
    ],
    ids=["a batch", "one angle for all", "wider angles", "angles that are not dense"],
)
def test_another_form_is_left_to_their_function(given: list[Any]) -> None:
    """Nothing answers calls here, so that one of ours would raise an error."""
    found = OurRotary(apply_rotary_pos_emb)(*given)
    for one, same in zip(found, apply_rotary_pos_emb(*given), strict=True):
        assert torch.equal(one, same)
    usual = arguments()
    assert torch.equal(OurRotary(apply_rotary_pos_emb)(*usual, unsqueeze_dim=1)[0], apply_rotary_pos_emb(*usual)[0])


def _stretched(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    turned = apply_rotary_pos_emb(q, k, cos, sin)
    return turned[0] * 1.01, turned[1]


def _failing(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    raise RuntimeError("another kind of tensor is wanted")


def _of_one(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return apply_rotary_pos_emb(q, k, cos, sin)[0]


def _named_otherwise(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return apply_rotary_pos_emb(x, y, cos, sin)


@pytest.mark.parametrize("function", [_stretched, _failing, _of_one, _named_otherwise])
def test_functions_that_compute_something_else(function: Any) -> None:
    assert _rotates(apply_rotary_pos_emb)
    assert not _rotates(function)
