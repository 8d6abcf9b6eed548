"""Engine: the same runtime without HTTP, inside a program.

    with Engine(model_path="...") as engine:
        print(engine.generate("Hello", {"max_new_tokens": 8})["text"])

The front lives in a thread of its own with its event loop; the verbs may be called from any thread, and the `async_`
ones from any event loop. A program that uses it needs no `if __name__ == "__main__"`: the children do not run it again.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar, overload

import msgspec
import uvloop

from mysglang.srt.args.groups import as_keywords
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.entrypoints.app_options import public_options
from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.engine_weights import EngineWeights
from mysglang.srt.entrypoints.launcher import Subprocesses, find_model
from mysglang.srt.entrypoints.native_responses import answer, responses
from mysglang.srt.entrypoints.openai.pooling_protocol import RerankRequest, ScoringRequest
from mysglang.srt.entrypoints.profile_body import PROFILE_S, ProfileReqInput
from mysglang.srt.entrypoints.ready_front import ReadyFront
from mysglang.srt.entrypoints.runtime import Runtime
from mysglang.srt.entrypoints.weight_commands import DEFAULT_GROUP, DiskFormat
from mysglang.srt.errors import ConfigError, InvalidRequest, ServerEnded, ShuttingDown, WorkerDied
from mysglang.srt.managers.pooled import embeddings
from mysglang.srt.managers.ranking import rerank, score
from mysglang.srt.managers.response_dict import Answer, Response, ResponseDicts
from mysglang.srt.messages.control import FlushCacheReqOutput, StopProfileReq
from mysglang.srt.messages.embedding import parse_embedding
from mysglang.srt.messages.generate import GenerateReqInput, parse_generate
from mysglang.srt.messages.weights import MEMORY_TAGS, MemoryTag
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.log_output import open_standard_files
from mysglang.srt.utils.logging import configure_logging
from mysglang.srt.utils.service_thread import ServiceThread
from mysglang.srt.utils.tokenizer import Tokenizer
from mysglang.srt.utils.version import __version__

T = TypeVar("T")

Prompt: TypeAlias = str | list[str]
InputIds: TypeAlias = list[int] | list[list[int]]
Params: TypeAlias = Mapping[str, Any] | list[Mapping[str, Any]]
"""Sampling parameters by their native names, for all prompts or for each."""

UNQUEUED = 1 << 30
"""A program may submit any number of prompts, because no other client waits."""

SETTLE_S = 10.0
"""Seconds that open calls have to end at a shutdown, and that a start which failed has to end its processes."""

SHUT_DOWN = "the engine was shut down"


@contextlib.contextmanager
def spells_keywords() -> Iterator[None]:
    """Within it, options in a ConfigError are called by their keywords instead of their flags."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(*map(as_keywords, error.problems)) from error


class Engine:
    """A model that generates, or makes vectors. `options` are those of the server, by name; see `ServerArgs`."""

    @spells_keywords()
    def __init__(self, *, server_args: ServerArgs | None = None, **options: Any) -> None:
        """Starts the engine, and returns when it is ready. Raises ConfigError, or WorkerDied if a process ended before
        that.
        """
        if server_args is None:
            defaults = {"log_level": "error", "max_queued_requests": UNQUEUED}
            server_args = ServerArgs.from_kwargs(**{**defaults, **options})
        if server_args.serving.tokenizer_worker_num != 1:
            raise ConfigError(
                "--tokenizer-worker-num: only for the HTTP server; an Engine is asked in its own process."
            )
        open_standard_files()
        configure_logging(server_args.observability.log_level)
        self.server_args, model_config = find_model(server_args)
        self._closed = False
        self._pid = os.getpid()
        self._loop = uvloop.new_event_loop()
        # The children's lives hang on the thread that starts them, so it is one that stays.
        self._pending: set[concurrent.futures.Future[Any]] = set()
        """Futures that callers wait for."""
        self._calls: set[asyncio.Task[Any]] = set()
        """The tasks of these calls in the engine's loop."""
        self._end: ServerEnded | None = None
        """Set once the loop runs no call any more."""
        self._thread = ServiceThread("mysglang engine", self._loop.run_forever, self._die)
        try:
            self._runtime, self._front = self._await(self._start(model_config))
        except BaseException:
            # An interrupted start has its processes to end.
            self._await(self._settle())
            self._end_thread()
            raise
        atexit.register(self.shutdown)

    @overload
    def generate(
        self,
        prompt: Prompt | None = None,
        sampling_params: Params | None = None,
        input_ids: InputIds | None = None,
        *,
        stream: Literal[False] = False,
        **fields: Any,
    ) -> Any: ...

    @overload
    def generate(
        self,
        prompt: Prompt | None = None,
        sampling_params: Params | None = None,
        input_ids: InputIds | None = None,
        *,
        stream: Literal[True],
        **fields: Any,
    ) -> Iterator[Response]: ...

    def generate(
        self,
        prompt: Prompt | None = None,
        sampling_params: Params | None = None,
        input_ids: InputIds | None = None,
        *,
        stream: bool = False,
        **fields: Any,
    ) -> Any:
        """Returns the native response {text, output_ids, meta_info}; a list of them for a batch or n > 1.

        `fields` are the other fields of POST /generate, by name. With `stream`, an iterator over responses as they
        grow, which say by `index` whose they are if there are several; leaving it ends the request. Raises
        InvalidRequest that names the field, Aborted, WorkerDied.
        """
        request = _request(prompt, sampling_params, input_ids, stream, fields)
        return self._iterate(request) if stream else self._await(self._answer(request))

    async def async_generate(
        self,
        prompt: Prompt | None = None,
        sampling_params: Params | None = None,
        input_ids: InputIds | None = None,
        *,
        stream: bool = False,
        **fields: Any,
    ) -> Any:
        """Does what `generate` does, for a caller with an event loop of its own; with `stream`, returns an async
        iterator.
        """
        request = _request(prompt, sampling_params, input_ids, stream, fields)
        return self._async_iterate(request) if stream else await self._call(self._answer(request))

    def encode(
        self, prompt: Prompt | None = None, input_ids: InputIds | None = None, *, dimensions: int | None = None
    ) -> Any:
        """Returns the native response {embedding, meta_info}; a list of them for a batch.

        For a model that classifies, the embedding is its scores. Raises InvalidRequest that names the field, Aborted,
        WorkerDied.
        """
        return self._await(self._encode(prompt, input_ids, dimensions))

    async def async_encode(
        self, prompt: Prompt | None = None, input_ids: InputIds | None = None, *, dimensions: int | None = None
    ) -> Any:
        """Does what `encode` does, for a caller with an event loop of its own."""
        return await self._call(self._encode(prompt, input_ids, dimensions))

    def rerank(self, query: str, documents: list[str], *, top_n: int | None = None) -> list[dict[str, Any]]:
        """Ranks documents, the most relevant first: {score, document, index, meta_info}. Raises the errors of
        `encode`.
        """
        return self._await(self._rerank({"query": query, "documents": documents, "top_n": top_n}))

    def score(
        self,
        query: str | list[int],
        items: str | list[str] | list[list[int]],
        label_token_ids: list[int] | None = None,
        *,
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> list[list[float]]:
        """Returns, for each item, the probability of each label as the next token after query and item; see /v1/score.
        Raises the errors of `encode`.
        """
        body = {"query": query, "items": items, "label_token_ids": label_token_ids}
        return self._await(self._score({**body, "apply_softmax": apply_softmax, "item_first": item_first}))

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True, **template_kwargs: object
    ) -> str:
        """Returns a conversation as the prompt that the model's chat template makes of it, the beginning-of-text token
        included. Raises InvalidRequest for a model without a template, and for what the template refuses.
        """
        templates = self._front.template_manager
        if templates is None:
            raise InvalidRequest("This engine runs without a tokenizer, and so without a chat template.")
        return templates.render(messages, add_generation_prompt=add_generation_prompt, template_kwargs=template_kwargs)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None with `skip_tokenizer_init`."""
        return self._front.tokenizer

    def flush_cache(self) -> FlushCacheReqOutput:
        """Empties the prefix cache, if nothing runs."""
        return self._await(self._front.tokenizer_manager.flush_cache())

    @property
    def weights(self) -> EngineWeights:
        """The functions that change and read the weights; Engine has the usual ones too, under SGLang's names."""
        return EngineWeights(self._front.tokenizer_manager, self._await)

    def update_weights_from_disk(
        self, model_path: str, load_format: DiskFormat | None = None, **update: Any
    ) -> tuple[bool, str]:
        """Loads another checkpoint of the same model; see `EngineWeights.from_disk`."""
        return self.weights.from_disk(model_path, load_format, **update)

    def update_weights_from_tensor(self, named_tensors: Iterable[tuple[str, Any]], **update: Any) -> tuple[bool, str]:
        """Replaces some of the model's tensors; see `EngineWeights.from_tensor`."""
        return self.weights.from_tensor(named_tensors, **update)

    def update_weights_from_distributed(
        self, names: list[str], dtypes: list[str], shapes: list[list[int]], **update: Any
    ) -> tuple[bool, str]:
        """Receives tensors that a trainer broadcasts; see `EngineWeights.from_distributed`."""
        return self.weights.from_distributed(names, dtypes, shapes, **update)

    def init_weights_update_group(
        self, master_address: str, master_port: int, rank_offset: int, world_size: int, **group: Any
    ) -> tuple[bool, str]:
        """Joins a trainer's group; see `EngineWeights.init_group`."""
        return self.weights.init_group(master_address, master_port, rank_offset, world_size, **group)

    def destroy_weights_update_group(self, group_name: str = DEFAULT_GROUP) -> tuple[bool, str]:
        """Leave a group for weight updates."""
        return self.weights.destroy_group(group_name)

    def release_memory_occupation(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> tuple[bool, str]:
        """Releases memory; see POST /release_memory_occupation."""
        return self.weights.release_memory(tags)

    def resume_memory_occupation(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> tuple[bool, str]:
        """Takes back the memory that `release_memory_occupation` released."""
        return self.weights.resume_memory(tags)

    def get_weights_by_name(self, name: str, truncate_size: int = 100) -> list[Any]:
        """Returns the first rows of a tensor; see `EngineWeights.by_name`."""
        return self.weights.by_name(name, truncate_size)

    def save_sharded_model(self, path: str, pattern: str | None = None, max_size: int | None = None) -> None:
        """Writes the model to a directory for `--load-format sharded_state`, with its config and tokenizer; each rank
        writes its own part.

        pattern: file names, with {rank} and {part}. max_size: limit of a file in bytes; None: one file for each rank.
        Raises InvalidRequest naming the argument, if `path` holds weights or cannot be written.
        """
        model_path = self.server_args.model.model_path
        assert model_path is not None, "server_args are resolved"
        self.weights.save_sharded(Path(model_path), Path(path), pattern, max_size)

    def start_profile(self, **profile: Any) -> tuple[bool, str]:
        """Starts recording what the scheduler does. `profile`: the fields of POST /start_profile. Returns whether it
        was started, and a message.
        """
        body = validate(ProfileReqInput, profile)
        reply = self._await(self._front.tokenizer_manager.command(body.command, patience_s=PROFILE_S))
        return reply.success, reply.message

    def stop_profile(self) -> tuple[bool, str]:
        """End the recording, and write its files."""
        manager = self._front.tokenizer_manager
        reply = self._await(manager.command(lambda number: StopProfileReq(id=number), patience_s=PROFILE_S))
        return reply.success, reply.message

    def get_server_info(self) -> dict[str, Any]:
        """Returns the server's options, the scheduler's capacity, and what it holds now."""
        state = self._await(self._front.tokenizer_manager.get_internal_state())
        return {
            **public_options(self.server_args),
            "version": __version__,
            "scheduler_info": msgspec.to_builtins(self._front.facts),
            "internal_states": [msgspec.to_builtins(state)],
        }

    def shutdown(self) -> None:
        """Ends the processes, and all open calls with ShuttingDown. Called once more, at the program's end, and in a
        forked process it does nothing.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.shutdown)
        if self._end is None:
            self._await(self._stop())
            self._end_thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    async def _start(self, model_config: ModelConfig) -> tuple[Runtime, ReadyFront]:
        children = Subprocesses(self.server_args)
        try:
            runtime = Runtime(self.server_args, model_config, children)
        except BaseException:
            await children.stop()
            raise
        try:
            return runtime, await runtime.wait_ready()
        except BaseException:
            await runtime.stop()
            raise

    async def _stop(self) -> None:
        self._runtime.cut_off(SHUT_DOWN)
        await self._settle()
        await self._loop.shutdown_asyncgens()  # streams without a reader at this moment
        await self._runtime.stop()

    async def _settle(self) -> None:
        """Waits for the ends of all other calls."""
        if others := self._calls - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=SETTLE_S)

    def _responses(self, request: GenerateReqInput) -> AsyncGenerator[Response, None]:
        incremental = self.server_args.serving.incremental_streaming_output
        dicts = ResponseDicts(request, self._front.tokenizer, incremental=incremental)
        return responses(self._front.tokenizer_manager, request, dicts)

    async def _answer(self, request: GenerateReqInput) -> Answer:
        return await answer(self._front.tokenizer_manager, request, ResponseDicts(request, self._front.tokenizer))

    async def _encode(self, prompt: Prompt | None, input_ids: InputIds | None, dimensions: int | None) -> Any:
        obj = parse_embedding({"text": prompt, "input_ids": input_ids, "dimensions": dimensions})
        return await embeddings(self._front.tokenizer_manager.generate_request, obj, self._runtime.model_config.pooling)

    async def _rerank(self, data: dict[str, object]) -> list[dict[str, Any]]:
        body = validate(RerankRequest, data)
        manager, pooling = self._front.tokenizer_manager, self._runtime.model_config.pooling
        ranked = await rerank(manager, pooling, body.query, body.documents)
        return [one.response(body.documents, with_text=True) for one in ranked[: body.top_n]]

    async def _score(self, data: dict[str, object]) -> list[list[float]]:
        body = validate(ScoringRequest, data)
        manager, pooling = self._front.tokenizer_manager, self._runtime.model_config.pooling
        softmax = body.apply_softmax
        found = await score(manager, pooling, body.prompts(), body.label_token_ids, apply_softmax=softmax)
        return found.rows

    def _iterate(self, request: GenerateReqInput) -> Iterator[Response]:
        coming = self._responses(request)
        try:
            while (response := self._await(anext(coming, None))) is not None:
                yield response
        finally:
            with contextlib.suppress(ServerEnded):  # the end of the engine has closed it
                self._await(coming.aclose())

    async def _async_iterate(self, request: GenerateReqInput) -> AsyncIterator[Response]:
        coming = self._responses(request)
        try:
            while (response := await self._call(anext(coming, None))) is not None:
                yield response
        finally:
            with contextlib.suppress(ServerEnded):
                await self._call(coming.aclose())

    def _await(self, work: Awaitable[T]) -> T:
        """Runs `work` in the engine's event loop, waits for it, and returns its result. An interrupt cancels it."""
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _call(self, work: Awaitable[T]) -> T:
        """Does what `_await` does, for a caller in another event loop."""
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Awaitable[T]) -> concurrent.futures.Future[T]:
        """Runs `work` in the engine's event loop. Raises ServerEnded if that runs no more, or not in this process."""

        async def run() -> T:
            task = asyncio.current_task()
            assert task is not None, "run as a task"
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            return await work

        calling = run()
        try:
            self._check_running()
            future = asyncio.run_coroutine_threadsafe(calling, self._loop)
        except (ServerEnded, RuntimeError):
            calling.close()
            if isinstance(work, Coroutine):
                work.close()  # what never runs would be warned of
            self._check_running()  # the loop was closed in this moment
            raise
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        if self._end is not None:
            self._fail_pending(self._end)
        return future

    def _check_running(self) -> None:
        if os.getpid() != self._pid:
            raise ServerEnded(f"this engine is one of process {self._pid}; a forked process must make its own")
        if self._end is not None:
            raise self._end.again()

    def _die(self, cause: str) -> None:
        """Ends all calls after the death of the loop's thread."""
        self._fail_pending(WorkerDied(cause))

    def _fail_pending(self, end: ServerEnded) -> None:
        """Fails all pending calls, which would otherwise wait for ever, because the loop runs no more."""
        self._end = end
        for future in list(self._pending):
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                future.set_exception(end.again())

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._fail_pending(ShuttingDown(SHUT_DOWN))
        self._loop.close()


def _request(
    prompt: Prompt | None,
    sampling_params: Params | None,
    input_ids: InputIds | None,
    stream: bool,
    fields: Mapping[str, Any],
) -> GenerateReqInput:
    """Builds a request and checks it like one that came by HTTP."""
    given = {"text": prompt, "sampling_params": sampling_params, "input_ids": input_ids, "stream": stream}
    return parse_generate({**fields, **given})
