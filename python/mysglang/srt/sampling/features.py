"""The table of sampling features. Those of one stage act in this order, and the API lists their fields in it."""

from mysglang.srt.sampling.drawing import DRAWING
from mysglang.srt.sampling.feature import SamplingFeature
from mysglang.srt.sampling.logit_bias import LOGIT_BIAS
from mysglang.srt.sampling.min_new_tokens import MIN_NEW_TOKENS
from mysglang.srt.sampling.penalties import PENALTIES

FEATURES: tuple[SamplingFeature, ...] = (DRAWING, PENALTIES, LOGIT_BIAS, MIN_NEW_TOKENS)
