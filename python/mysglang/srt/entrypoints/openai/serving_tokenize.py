"""/tokenize and /detokenize: what a prompt or a conversation is in token ids, and what ids are as text."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.requests import Request
from starlette.responses import Response

from mysglang.srt.entrypoints.body import BODY_BYTES
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.json_pieces import in_pieces
from mysglang.srt.entrypoints.json_response import written_response
from mysglang.srt.entrypoints.openai.chat_prompt import render_chat
from mysglang.srt.entrypoints.openai.field_names import TOKENIZE_NAMES, own_words
from mysglang.srt.entrypoints.openai.protocol import DetokenizeRequest, TokenizeRequest
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.utils.fair_turns import Breather


class OpenAIServingTokenize:
    """Answers /tokenize and /detokenize. One prompt gives one list of ids, and several give a list of lists; the same
    holds for ids and texts.
    """

    def __init__(self, front: Front, models: OpenAIServingModels) -> None:
        self._front = front
        self._coder = front.tokenizer_manager.input_tokenizer
        self._models = models

    async def tokenize(self, request: Request) -> Response:
        body = await self._models.read(request, TokenizeRequest)
        return await while_connected(request, self._written(self._tokenized(body)))

    async def detokenize(self, request: Request) -> Response:
        body = await self._models.read(request, DetokenizeRequest)
        return await while_connected(request, self._written(self._detokenized(body)))

    async def _written(self, making: Awaitable[dict[str, object]]) -> Response:
        """Returns the response; a long answer is written in a thread."""
        answer = await making
        return written_response([await self._front.text_pool.run_if_long(BODY_BYTES.get(), lambda: in_pieces(answer))])

    async def _tokenized(self, body: TokenizeRequest) -> dict[str, object]:
        tokens: list[int] | list[list[int]]
        count: int | list[int]
        if isinstance(body.prompt, list):
            lists: list[list[int]] = []
            breather = Breather()
            for text in body.prompt:
                lists.append(await self._ids(text, body.add_special_tokens))
                await breather.rest()
            tokens, count = lists, [len(ids) for ids in lists]
        elif body.prompt is not None:
            tokens = await self._ids(body.prompt, body.add_special_tokens)
            count = len(tokens)
        else:
            assert body.messages is not None, "one of the two is given"
            prompt = await render_chat(
                self._front,
                body.messages,
                tools=[tool.as_sent() for tool in body.tools],
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                template_kwargs=body.chat_template_kwargs,
            )
            tokens = await self._ids(prompt, False)  # the template has written them
            count = len(tokens)
        return {"tokens": tokens, "count": count, "max_model_len": self._models.max_model_len}

    async def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        with own_words(TOKENIZE_NAMES):
            return await self._coder.encode(text, add_special_tokens=add_special_tokens)

    async def _detokenized(self, body: DetokenizeRequest) -> dict[str, object]:
        # Ids all of them, or lists of ids all of them.
        if not isinstance(body.tokens[0] if body.tokens else 0, list):
            return {"text": await self._text(body.tokens, body)}  # type: ignore[arg-type]
        breather, texts = Breather(), []
        for ids in body.tokens:
            texts.append(await self._text(ids, body))  # type: ignore[arg-type]
            await breather.rest()
        return {"text": texts}

    async def _text(self, ids: list[int], body: DetokenizeRequest) -> str:
        with own_words(TOKENIZE_NAMES):
            return await self._coder.decode(ids, skip_special_tokens=body.skip_special_tokens)
