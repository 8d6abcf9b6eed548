"""Runtime: a backend in this process, an `Engine` without HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from mysglang.lang.backends.native import Body, NativeBackend
from mysglang.lang.chat_format import Message
from mysglang.srt.entrypoints.engine import Engine


class Runtime(NativeBackend):
    """Starts a model for programs of this process; `options` are the server's, by name. End it with `shutdown`, or use
    it as a context.

    SGLang's `Runtime` is an HTTP server, too. This one listens nowhere: for a URL, start `launch_server` and use
    `RuntimeEndpoint`.
    """

    def __init__(self, *, chat_template_name: str | None = None, **options: Any) -> None:
        """Starts an engine, and returns when its model is ready. Raises ConfigError, WorkerDied."""
        self.engine = Engine(**options)
        try:
            self._chat_template = self.find_chat_template(
                chat_template_name, str(self.engine.server_args.model.model_path)
            )
        except BaseException:
            self.engine.shutdown()
            raise

    def ask(self, body: Body) -> Any:
        fields = {name: value for name, value in body.items() if name not in ("text", "sampling_params", "input_ids")}
        return self.engine.generate(body.get("text"), body.get("sampling_params"), body.get("input_ids"), **fields)

    def ask_stream(self, body: Body) -> Iterator[Mapping[str, Any]]:
        fields = {name: value for name, value in body.items() if name not in ("text", "sampling_params")}
        yield from self.engine.generate(body["text"], body["sampling_params"], stream=True, **fields)

    def render(self, messages: list[Message], add_generation_prompt: bool) -> str:
        rendered = self.engine.apply_chat_template(messages, add_generation_prompt=add_generation_prompt)
        tokenizer = self.engine.tokenizer
        assert tokenizer is not None, "a chat template was rendered without a tokenizer"
        added = tokenizer.decode(tokenizer.encode(""), skip_special_tokens=False)
        return rendered.removeprefix(added)

    def flush_cache(self, empty_cache: bool = True) -> object:
        return self.engine.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        return self.engine.get_server_info()

    def generate_text(self, prompt: str, sampling_params: Mapping[str, Any] | None = None) -> str:
        """Returns the continuation of `prompt`, without a program."""
        answer: dict[str, Any] = self.engine.generate(prompt, sampling_params)
        return str(answer["text"])

    async def async_generate(self, prompt: str, sampling_params: Mapping[str, Any] | None = None) -> AsyncIterator[str]:
        """Yields the continuation of `prompt`, piece by piece. No program is needed."""
        said = 0
        async for answer in await self.engine.async_generate(prompt, sampling_params, stream=True):
            yield answer["text"][said:]
            said = len(answer["text"])

    def get_tokenizer(self) -> Any:
        """Returns the model's tokenizer."""
        return self.engine.tokenizer

    @property
    def url(self) -> str:
        raise AttributeError("a Runtime has no URL: it runs in this process. Start launch_server for one that has.")

    def shutdown(self) -> None:
        """End the model's processes. Called once more, it does nothing."""
        self.engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()
