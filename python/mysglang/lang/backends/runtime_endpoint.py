"""RuntimeEndpoint: a backend over HTTP, a server of ours (or of SGLang)."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from mysglang.lang.backends.native import Body, NativeBackend
from mysglang.lang.chat_format import Message

_DONE = "[DONE]"
_CONNECTIONS = 4096
"""Programs that run at the same time each hold one connection while they wait for an answer."""


class RuntimeEndpoint(NativeBackend):
    """Programs on the server at `base_url`."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str = True,
        chat_template_name: str | None = None,
    ) -> None:
        """`verify`: a file of certificates to trust, or False to trust all. Raises ConnectionError if no server answers
        at the address, and RuntimeError with the server's message if it refuses.
        """
        self.base_url = base_url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # An answer may take as long as it takes; only connecting has a limit.
        self._client = httpx.Client(
            base_url=self.base_url,
            headers=headers,
            verify=verify,
            timeout=httpx.Timeout(None, connect=30.0),
            limits=httpx.Limits(max_connections=_CONNECTIONS),
        )
        # Programs hardly ever close a backend: its connections close with it.
        weakref.finalize(self, self._client.close)
        self.model_info: dict[str, Any] = self._json("GET", "/model_info")
        self._added = self._tokens({"prompt": ""})
        self._chat_template = self.find_chat_template(chat_template_name, self.get_model_name())

    def get_model_name(self) -> str:
        """Returns the path of the served model."""
        return str(self.model_info["model_path"])

    def ask(self, body: Body) -> Any:
        return self._json("POST", "/generate", body)

    def ask_stream(self, body: Body) -> Iterator[Mapping[str, Any]]:
        with self._client.stream("POST", "/generate", json={**body, "stream": True}) as response:
            if response.is_error:
                response.read()
            _check(response)
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip()
                if not line.startswith("data:") or data == _DONE:
                    continue
                answer = json.loads(data)
                if "error" in answer:
                    raise RuntimeError(f"the server ended the answer: {_words(answer)}")
                yield answer

    def render(self, messages: list[Message], add_generation_prompt: bool) -> str:
        tokens = self._tokens({"messages": messages, "add_generation_prompt": add_generation_prompt})
        if self._added and tokens[: len(self._added)] == self._added:
            tokens = tokens[len(self._added) :]
        answer = self._json("POST", "/detokenize", {"tokens": tokens, "skip_special_tokens": False})
        return str(answer["text"])

    def flush_cache(self, empty_cache: bool = True) -> object:
        return _check(self._send("POST", "/flush_cache"))

    def get_server_info(self) -> dict[str, Any]:
        return dict(self._json("GET", "/server_info"))

    def start_profile(self, **options: Any) -> None:
        """Asks the server to record its steps; `options` are the fields of POST /start_profile."""
        _check(self._send("POST", "/start_profile", options))

    def stop_profile(self) -> None:
        """End the recording."""
        _check(self._send("POST", "/stop_profile"))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _tokens(self, body: Mapping[str, Any]) -> list[int]:
        return list(self._json("POST", "/tokenize", body)["tokens"])

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return _check(self._send(method, path, body)).json()

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        try:
            return self._client.request(method, path, json=body)
        except httpx.TransportError as error:
            raise ConnectionError(f"{self.base_url} does not answer: {error}") from error


def _check(response: httpx.Response) -> httpx.Response:
    """Raises RuntimeError with the server's words."""
    if response.is_success:
        return response
    try:
        words = _words(response.json())
    except ValueError:
        words = response.text
    raise RuntimeError(f"the server answered {response.status_code}: {words}")


def _words(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, Mapping) else body
    return str(error.get("message", error) if isinstance(error, Mapping) else error)
