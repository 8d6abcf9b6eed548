"""Probabilities of a classifier's labels, as transformers' pipeline computes them."""

import numpy as np
import pytest
from transformers.pipelines import text_classification

from mysglang.srt.configs.pooling_config import Likelihood
from mysglang.srt.entrypoints.openai.serving_ranking import probabilities

SCORES = np.array([2.0, -1.0, 0.5], dtype=np.float32)


@pytest.mark.parametrize(
    ("likelihood", "expected"),
    [
        ("softmax", text_classification.softmax(SCORES)),
        ("sigmoid", text_classification.sigmoid(SCORES)),
        ("identity", SCORES),
    ],
)
def test_each_function(likelihood: Likelihood, expected: np.ndarray) -> None:
    np.testing.assert_allclose(probabilities(SCORES, likelihood), expected, rtol=1e-6)
