"""Plans of what Gemma 3n and Gemma 4 have around their layers: inputs for each layer, and several streams."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mysglang.srt.configs.checkpoint_tensors import Matrix, Size


class LayerInputsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs that every layer has of its own for each token (per-layer embeddings), computed for all layers at once.

    They are (norm(projection(embedding) / sqrt(hidden_size)) + sqrt(size) * table[id]) / sqrt(2). Source: Gemma 3n.
    """

    layers: int
    vocab_size: int
    """Rows of the table. Tokens with larger ids have the row of token 0."""
    size: int
    """Numbers for each layer."""
    eps: float
    """Epsilon of the RMS norm."""

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Matrices outside the layers, named by the last two parts of their names."""
        width = Size("num_hidden_layers * hidden_size_per_layer_input", self.layers * self.size)
        yield Matrix("table.weight", Size("vocab_size_per_layer_input", self.vocab_size), width)
        yield Matrix("projection.weight", width, hidden)


class LayerInputPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's use of its input: norm(projection(activation(gate(x)) * input)) is added to the residual stream."""

    number: int
    """Which of the inputs is this layer's."""
    size: int
    activation: str
    """Name of the activation in config.json."""
    eps: float
    """Epsilon of the RMS norm."""

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Matrices in a checkpoint's layer, by the names of here."""
        size = Size("hidden_size_per_layer_input", self.size)
        yield Matrix("layer_input.gate.weight", size, hidden)
        yield Matrix("layer_input.projection.weight", hidden, size)


class AltUpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Several streams for each token, of which a layer computes one and corrects the others (alternating updates), and
    a product of two small matrices beside attention (LAuReL).

    Baykal et al., "Alternating Updates for Efficient Transformers" (arXiv 2301.13310); Menghani, Kumar and Kumar,
    "LAuReL" (arXiv 2411.07501). As in Gemma 3n.
    """

    streams: int
    active: int
    """Number of the stream that layers compute."""
    scaled: bool
    """True if the corrected active stream is multiplied by a number for each lane on its way to the layer's input."""
    rank: int
    """Inner size of LAuReL."""

    def tables(self, hidden: Size) -> Iterator[Matrix]:
        """Matrices outside the layers."""
        yield Matrix("streams.widen.{}.weight", hidden, hidden, copies=self.streams - 1)
        yield Matrix("streams.narrow.{}.weight", hidden, hidden, copies=self.streams - 1)

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Matrices in each layer."""
        rank, streams = Size("laurel_rank", self.rank), Size("altup_num_inputs", self.streams)
        yield Matrix("laurel.linear_left.weight", rank, hidden)
        yield Matrix("laurel.linear_right.weight", hidden, rank)
        yield Matrix("altup.modality_router.weight", streams, hidden)
