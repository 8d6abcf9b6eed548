"""The requests of /v1/embeddings and its neighbours, as clients may send them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mysglang.srt.entrypoints.field_bounds import check_joined
from mysglang.srt.entrypoints.openai.prompt_types import Prompts
from mysglang.srt.entrypoints.strict_model import StrictModel, not_here
from mysglang.srt.errors import InvalidRequest


class PoolingRequest(StrictModel):
    """The common part of the requests of models that compute vectors or scores."""

    model: str | None = None
    rid: str | None = None
    extra_key: str | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None

    # Bookkeeping of the client's: taken, and without effect here.
    user: str | None = None

    aliases = {"request_id": "rid"}
    idle = not_here("priority", unless=(0,))
    unsupported = {
        **not_here("lora_path", "embed_overrides", "embed_override_token_id", "return_pooled_hidden_states"),
        **not_here("truncate_prompt_tokens", unless=(-1,)),
        **not_here("add_special_tokens", "normalize", unless=(True,)),
    }


class EmbeddingRequest(PoolingRequest):
    """Body of POST /v1/embeddings."""

    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class ClassifyRequest(PoolingRequest):
    """Body of POST /v1/classify."""

    input: Prompts


class RerankRequest(StrictModel):
    """Body of POST /v1/rerank."""

    model: str | None = None
    query: str
    documents: Annotated[list[str], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = True
    user: str | None = None

    idle = {**not_here("rid"), **not_here("priority", unless=(0,))}
    unsupported = {**not_here("instruct", "max_tokens_per_doc"), **not_here("truncate_prompt_tokens", unless=(-1,))}

    @model_validator(mode="after")
    def _fits(self) -> RerankRequest:
        check_joined("query", self.query, len(self.documents))
        return self


class CohereRerankRequest(RerankRequest):
    """Body of POST /v2/rerank. The texts are returned only if requested."""

    return_documents: bool = False


class ScoringRequest(StrictModel):
    """Body of POST /v1/score."""

    model: str | None = None
    query: str | list[int]
    items: str | list[str] | list[list[int]]
    label_token_ids: list[int] = []
    apply_softmax: bool = False
    item_first: bool = False
    user: str | None = None

    unsupported = {
        **not_here("temperature", unless=(1, 1.0)),
        **not_here("return_token_logprobs", "return_pooled_hidden_states", "score_extraction_token"),
    }
    idle = {**not_here("rid"), **not_here("priority", unless=(0,))}

    @model_validator(mode="after")
    def _fits(self) -> ScoringRequest:
        check_joined("query", self.query, 1 if isinstance(self.items, str) else len(self.items))
        return self

    @model_validator(mode="after")
    def _alike(self) -> ScoringRequest:
        if not self.items and self.items != "":
            raise InvalidRequest("items: must not be empty.", param="items")
        texts = isinstance(self.items, str) or isinstance(self.items[0], str)
        if texts != isinstance(self.query, str):
            raise InvalidRequest("query and items must both be texts, or both be token ids.", param="items")
        return self

    def prompts(self) -> list[str] | list[list[int]]:
        """Returns the prompts: each item after the query, or before it with `item_first`."""
        query = self.query
        if isinstance(query, str):
            texts = [self.items] if isinstance(self.items, str) else [one for one in self.items if isinstance(one, str)]
            return [text + query if self.item_first else query + text for text in texts]
        rows = [one for one in self.items if isinstance(one, list)]
        return [row + query if self.item_first else query + row for row in rows]
