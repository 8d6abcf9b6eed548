"""The parts of a decoder's layer behind its mixer: MLPs and mixtures of experts. Plans as those of `layer_plan.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from mysglang.srt.configs.checkpoint_tensors import Matrix, Size

RouterKind = Literal["softmax", "sigmoid", "sparsemixer"]
"""How a router scores experts: probabilities over all experts together, an independent score of each, or, for each
choice in turn, probabilities of the experts close to the best (`layers/moe/router.py`).
"""


class GatedMlpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An MLP that computes down(activation(gate(x)) * up(x))."""

    intermediate_size: int
    activation: str
    """Name of the activation in config.json."""
    bias: bool = False

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        return self.named("mlp", Size("intermediate_size", self.intermediate_size), hidden)

    @staticmethod
    def named(module: str, inner: Size, hidden: Size) -> Iterator[Matrix]:
        """Yields the matrices of the module with this name in a checkpoint's layer."""
        yield Matrix(f"{module}.gate_proj.weight", inner, hidden)
        yield Matrix(f"{module}.up_proj.weight", inner, hidden)
        yield Matrix(f"{module}.down_proj.weight", hidden, inner)


class ScaledMlpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An MLP that computes scale * down(activation(gate_scale * gate(x)) * up(x))."""

    intermediate_size: int
    activation: str
    """Name of the activation in config.json."""
    gate_scale: float
    scale: float
    bias: bool = False

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        return GatedMlpPlan.named("mlp", Size("intermediate_size", self.intermediate_size), hidden)


class SparseMlpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """down(activation(relu(gate(x) - cutoff)) * up(x)), the cutoff being the mean of gate(x) + the normal
    distribution's quantile of `sparsity` * the standard deviation of gate(x). Source: Gemma 3n (Gaussian top-k).
    """

    intermediate_size: int
    activation: str
    """Name of the activation in config.json."""
    sparsity: float
    """Part of the gate's numbers that are below the cutoff if they are distributed normally."""

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        return GatedMlpPlan.named("mlp", Size("intermediate_size", self.intermediate_size), hidden)


class NoMlpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The null MLP, for a layer that is a mixer alone."""

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        yield from ()


class PlainMlpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An MLP that computes down(activation(up(x)))."""

    intermediate_size: int
    activation: str
    """Name of the activation in config.json."""
    bias: bool = False
    parts: tuple[str, str] = ("up_proj", "down_proj")
    """The names of the two projections in a checkpoint."""

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        return self.named("mlp", Size("intermediate_size", self.intermediate_size), hidden, self.parts)

    @staticmethod
    def named(
        module: str, inner: Size, hidden: Size, parts: tuple[str, str] = ("up_proj", "down_proj")
    ) -> Iterator[Matrix]:
        """Yields the matrices of the module with this name in a checkpoint's layer."""
        up, down = parts
        yield Matrix(f"{module}.{up}.weight", inner, hidden)
        yield Matrix(f"{module}.{down}.weight", hidden, inner)


class RouterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The rule by which a token's experts and their gates are chosen."""

    kind: RouterKind
    top_k: int
    """Experts of a token."""
    renormalize: bool
    """True if the gates of a token's experts are divided by their sum."""
    groups: int = 1
    """Groups of as many experts each, of which a token's experts come from few."""
    kept_groups: int = 1
    """How many groups these are: the best, by their best expert, or for `sigmoid` by the sum of their best two."""
    scale: float = 1.0
    """Factor of the gates, after all else."""
    float32: bool = False
    """True if logits are computed in float32; otherwise in the dtype of the model."""
    corrected: bool = False
    """True if a checkpoint has a correction for each expert, which is added to its score for choosing experts only."""
    corrections_in_row: bool = False
    """True if a checkpoint stores the corrections as a matrix of one row."""
    bias: bool = False
    """True if logits have a bias."""
    least_sum: float = 0.0
    """Lower bound of the sum that gates are divided by, for `softmax`."""
    jitter: float = 0.0
    """For `sparsemixer`: twice the largest distance of a candidate expert from the best, relative to the larger of
    both.
    """
    scales_input: bool = False
    """True if the gates multiply the input of experts instead of their output."""


class SharedExpertPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An expert that every token goes through, in addition to the routed ones."""

    intermediate_size: int
    name: str = "shared_expert"
    """Name of the module in a checkpoint's MLP."""
    field: str = "shared_expert_intermediate_size"
    """Key of config.json for its size."""
    gated: bool = True
    """True if the output is multiplied by a gate, the sigmoid of a projection of its own."""
    bias: bool = False


class FusedExpertsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint has two tensors for all experts of a layer: one of gate and up together, and one of down; biases
    have two such tensors as well. Their names are among `DecoderPlan.renamed`.
    """

    transposed: bool
    """Shape of a tensor: [experts, input, output] if true, else [experts, output, input]."""
    interleaved: bool = False
    """True: outputs of gate and of up alternate. False: all outputs of gate come before those of up."""


class LatentExpertsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Routed experts between two projections: to vectors of another size, and back. Source: Nemotron 3 Super."""

    size: int
    """Size of what the experts take and give."""
    before: str = "fc1_latent_proj"
    behind: str = "fc2_latent_proj"
    bias: bool = False


class MixturePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The sum over a token's experts, which are MLPs themselves, of gate * expert(x)."""

    experts: int
    intermediate_size: int
    """Inner size of each expert."""
    activation: str
    """Name of the activation in config.json."""
    router: RouterPlan
    shared: SharedExpertPlan | None = None
    bias: bool = False
    """True if the projections of experts have biases."""
    fused: FusedExpertsPlan | None = None
    """None: a checkpoint has the matrices of each expert by themselves."""
    field: str = "num_experts"
    """Key of config.json for the number of experts."""
    size_field: str = "moe_intermediate_size"
    """Key of config.json for the size of an expert."""
    module: str = "mlp"
    """Name of the mixture's module in a checkpoint's layer."""
    parts: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    """The projections of an expert in a checkpoint: gate, up and down. Experts without a gate, and the shared one
    beside them, have up and down alone: down(activation(up(x))).
    """
    narrow: LatentExpertsPlan | None = None
    """None: routed experts take hidden states as they are."""

    @property
    def gated(self) -> bool:
        """True if each expert has a gate."""
        return len(self.parts) == 3

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        inner = Size(self.size_field, self.intermediate_size)
        every = {"copies": self.experts, "used": self.router.top_k}
        yield Matrix(f"{self.module}.gate.weight", Size(self.field, self.experts), hidden)
        width = hidden
        if self.narrow is not None:
            width = Size("moe_latent_size", self.narrow.size)
            yield Matrix(f"{self.module}.{self.narrow.before}.weight", width, hidden)
            yield Matrix(f"{self.module}.{self.narrow.behind}.weight", hidden, width)
        *inwards, down = self.parts
        for part in inwards:
            yield Matrix(f"{self.module}.experts.{{}}.{part}.weight", inner, width, **every)
        yield Matrix(f"{self.module}.experts.{{}}.{down}.weight", width, inner, **every)
        if self.shared is not None:
            beside = Size(self.shared.field, self.shared.intermediate_size)
            named = GatedMlpPlan.named if self.gated else PlainMlpPlan.named
            yield from named(f"{self.module}.{self.shared.name}", beside, hidden)
