"""The table of sampling features, in the order in which those of one stage act."""

from mysglang.srt.sampling.drawing import DRAWING
from mysglang.srt.sampling.feature import SamplingFeature
from mysglang.srt.sampling.logit_bias import LOGIT_BIAS
from mysglang.srt.sampling.min_new_tokens import MIN_NEW_TOKENS
from mysglang.srt.sampling.penalties import PENALTIES

FEATURES: tuple[SamplingFeature, ...] = (PENALTIES, LOGIT_BIAS, MIN_NEW_TOKENS, DRAWING)
