"""CausalLM: a decoder that predicts the next token."""

from __future__ import annotations

from torch import Tensor

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, TiedLMHead, UnitLMHead
from mysglang.srt.models.checkpoint_model import TokenModel
from mysglang.srt.models.decoder import Decoder, elsewhere
from mysglang.srt.models.dense_decoder import CannotDescribe, DenseDecoder


class CausalLM(Decoder, TokenModel):
    """A decoder with the projection from hidden states to logits."""

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        self.lm_head: ParallelLMHead = self._head(context.under("lm_head")) if stage.last else elsewhere()

    def _head(self, context: LayerContext) -> ParallelLMHead:
        plan, vocabulary, size = self.plan, self.config.vocab_size, self.config.hidden_size
        scale, cap, bias = plan.logit_scale, plan.logit_cap, plan.head_bias
        if plan.unit_head:
            assert not bias and not plan.tied_embeddings, "no such model is known"
            return UnitLMHead(vocabulary, size, scale=scale, cap=cap, context=context)
        if plan.tied_embeddings:
            return TiedLMHead(vocabulary, self.embed_tokens, scale=scale, cap=cap, bias=bias, context=context)
        return ParallelLMHead(vocabulary, size, scale=scale, cap=cap, bias=bias, context=context)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Computes logits, [N, hidden_size] -> [N, vocab_size], in the model's dtype."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def described(self) -> DenseDecoder:
        # Imported here, because it knows experts, and few processes describe a model.
        from mysglang.srt.models.describing import describe

        kind = type(self)
        # A class of a package may compute more than its plan says.
        if kind.forward is not CausalLM.forward or kind.compute_logits is not CausalLM.compute_logits:
            raise CannotDescribe("its class computes hidden states or logits in a way of its own")
        return describe(self, self.lm_head)
