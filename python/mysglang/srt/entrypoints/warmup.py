"""The first request, before "ready": one short generation, or one vector, through tokenizer, scheduler and detokenizer.

It finds what only running finds (a kernel that does not compile, a socket without a reader), and the first client does
not pay for what is done once.
"""

from __future__ import annotations

import logging

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.errors import RequestError, WorkerDied
from mysglang.srt.messages.embedding import EmbeddingReqInput
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils.logging import timed

logger = logging.getLogger(__name__)

PROMPT = "The capital city of France is"
SHORT_PROMPT = 64
"""If prompts must be shorter than this, the text might not fit, and the first request is a single token."""
PARAMS = SamplingParams(temperature=0.0, max_new_tokens=8, ignore_eos=True)


async def warm_up(front: Front) -> None:
    """Sends one request through the server. Raises WorkerDied if it is not answered."""
    takes_text = front.tokenizer is not None and front.facts.max_req_input_len >= SHORT_PROMPT
    if front.facts.is_embedding:
        prompt = EmbeddingReqInput(text=PROMPT) if takes_text else EmbeddingReqInput(input_ids=[0])
        request = prompt.request()
    elif not takes_text:
        request = GenerateReqInput(input_ids=[0], sampling_params=PARAMS, clip_max_new_tokens=True)
    else:
        request = GenerateReqInput(text=PROMPT, sampling_params=PARAMS, clip_max_new_tokens=True)
    with timed(logger, "The warm-up"):
        try:
            async for _ in front.tokenizer_manager.generate_request(request):
                pass
        except RequestError as error:
            raise WorkerDied(f"the warm-up request failed: {error}") from error
