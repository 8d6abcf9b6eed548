"""TemplateManager: which chat template a model has, and the way from a conversation to the prompt it was trained on.

Messages come as OpenAI has them and are brought into the form that the template takes. Knows no tokenizer: what a
prompt is made of as text, it says; as ids, others.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import jinja2

from mysglang.srt.errors import ConfigError, InvalidRequest
from mysglang.srt.parser.builtin_templates import BUILTIN_TEMPLATES
from mysglang.srt.parser.chat_template import THOUGHTS, ChatTemplate, ContentFormat, TooMuchTemplate

logger = logging.getLogger(__name__)

DEFAULT, TOOL_USE = "default", "tool_use"
"""Names that transformers gives a meaning to, where a model has several templates."""

_RESERVED = """
    messages conversation tools documents chat_template add_generation_prompt continue_final_message tokenize
    return_dict return_tensors return_assistant_tokens_mask padding truncation max_length tokenizer_kwargs
    raise_exception strftime_now namespace range dict lipsum cycler joiner
    bos_token eos_token unk_token sep_token pad_token cls_token mask_token
"""
RESERVED_KWARGS = frozenset(_RESERVED.split())
"""Names that `chat_template_kwargs` must not contain: the server sets them, or they are the template's tools."""

TOOL_SIZE = 256
"""Characters that a tool counts for in the size of a conversation."""

_NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}}

_CUT = "\ue000the answer goes on here\ue000"

Message: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form in which a template takes an assistant's message with tool calls."""

    no_text: str | None = ""
    """Content of a message with nothing but calls."""
    arguments_as_text: bool = False
    """True if the arguments are JSON text, as clients send them; otherwise they are an object."""


_PROBED = "probed_value"
_PROBE_CALL = {"id": "call12345", "type": "function", "function": {"name": "probe", "arguments": {"a": _PROBED}}}
_PROBE: Sequence[Message] = (
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "tool_calls": [_PROBE_CALL]},
    {"role": "tool", "tool_call_id": "call12345", "content": "1"},
)
"""A conversation with a call, whose id Mistral's templates take."""


class TemplateManager:
    """The templates of one model. Rendering belongs in a thread: it may take long."""

    def __init__(
        self, tokenizer_config: Mapping[str, object], special_tokens: Mapping[str, str], override: str | None = None
    ) -> None:
        """`override`: a file with a Jinja template, or the name of a built-in one, instead of the tokenizer's.

        Raises ConfigError for an override that cannot be used. A broken template of the model's own only means that it
        has none: a model that cannot chat can still complete.
        """
        self._special_tokens = dict(special_tokens)
        self._missing = "This model has no chat template; start the server with --chat-template to give it one."
        if override is not None:
            self._templates = {DEFAULT: _override(override)}
        else:
            self._templates = self._own_templates(tokenizer_config.get("chat_template"))
        self._drop_hostile(override)
        self._call_forms = {name: self._call_form(template) for name, template in self._templates.items()}

    @property
    def content_format(self) -> ContentFormat:
        """Content format of the default template: a list of parts, or only a string."""
        return self._template(False).content_format

    @property
    def can_chat(self) -> bool:
        """True if there is a template for conversations without tools."""
        return DEFAULT in self._templates

    @property
    def source(self) -> str:
        """The text of all templates, from which the model's format of calls and thoughts is recognized."""
        return "\n".join(template.source for template in self._templates.values())

    def variables(self, *, with_tools: bool = False) -> frozenset[str]:
        """Returns the variables of the template that would render a conversation with or without tools. Raises
        InvalidRequest.
        """
        return self._template(with_tools).variables

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
        quick: bool = False,
        cancelled: threading.Event | None = None,
    ) -> str:
        """Returns the prompt of a conversation, its BOS included: it is tokenized without `add_special_tokens`.

        `tools` as OpenAI has them; `template_kwargs` are further variables, such as enable_thinking. The prompt ends
        with the head of the assistant's answer, or, with `continue_final_message`, inside the last message, for the
        model to go on with. `quick` raises NotQuick where this takes longer than an event loop may stand still, and
        `cancelled` ends it early. Raises InvalidRequest.
        """
        kwargs = template_kwargs or {}
        if not messages:
            raise InvalidRequest("messages must not be empty.", param="messages")
        if reserved := RESERVED_KWARGS & kwargs.keys():
            message = f"chat_template_kwargs may not hold {min(reserved)!r}."
            raise InvalidRequest(message, param="chat_template_kwargs")
        name = self._name(bool(tools))
        template, form = self._templates[name], self._call_forms[name]
        conversation = [_fit(message, template, form) for message in messages]
        variables: dict[str, object] = {
            **self._special_tokens,
            **kwargs,
            "messages": conversation,
            "tools": list(tools or ()) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        if continue_final_message:
            conversation[-1] = _with_cut(conversation[-1])
        try:
            rendered = _written(template, variables, quick, cancelled)
        except TooMuchTemplate:
            raise
        except InvalidRequest as error:
            raise _explained(error, conversation, form) from error
        return _cut(rendered) if continue_final_message else rendered

    def _name(self, with_tools: bool) -> str:
        if with_tools and TOOL_USE in self._templates:
            return TOOL_USE
        if DEFAULT not in self._templates:
            raise InvalidRequest(self._missing, param="messages")
        return DEFAULT

    def _template(self, with_tools: bool) -> ChatTemplate:
        return self._templates[self._name(with_tools)]

    def _call_form(self, template: ChatTemplate) -> CallForm:
        """Returns the form in which the template shows a call with its arguments, found by trying. Templates that ask
        for content that is none show calls only there, or take the empty text for a turn of its own.
        """
        shown = {form: self._probed(template, form) for form in (CallForm(), CallForm(arguments_as_text=True))}
        usual = next((form for form, text in shown.items() if text is not None), CallForm())
        for form in (CallForm(None), CallForm(None, arguments_as_text=True)) if template.tests_no_content else ():
            text = self._probed(template, form)
            if text is not None:
                return usual if text == shown[usual] else form
        return usual

    def _probed(self, template: ChatTemplate, form: CallForm) -> str | None:
        """Returns the prompt of a conversation with a call; None if the template refuses it, or drops the call."""
        messages = [_fit(message, template, form) for message in _PROBE]
        tools = [_completed({"type": "function", "function": {"name": "probe"}})]
        variables = {**self._special_tokens, "messages": messages, "tools": tools, "add_generation_prompt": True}
        try:
            text = template.render(variables)
        except InvalidRequest:
            return None
        return text if _PROBED in text else None

    def _own_templates(self, found: object) -> dict[str, ChatTemplate]:
        """Returns the tokenizer's: a string, or a list of objects with name and template."""
        sources: dict[str, str] = {}
        if isinstance(found, str):
            sources[DEFAULT] = found
        for entry in found if isinstance(found, list) else []:
            match entry:
                case {"name": str(name), "template": str(source)}:
                    sources[name] = source
        templates = {}
        for name, source in sources.items():
            try:
                templates[name] = ChatTemplate(source)
            except jinja2.TemplateSyntaxError as error:
                self._missing = f"The model's chat template cannot be read ({error}); give one with --chat-template."
                logger.warning("The model's chat template %r cannot be read: %s", name, error)
        return templates

    def _drop_hostile(self, override: str | None) -> None:
        """Tries each template on the shortest conversation. One that does too much even there is not used."""
        for name, template in list(self._templates.items()):
            message = _fit({"role": "user", "content": "Hi"}, template, CallForm())
            try:
                template.render({**self._special_tokens, "messages": [message], "add_generation_prompt": True})
            except TooMuchTemplate as error:
                why = "it takes too much time or memory for a message of two letters"
                if override is not None:
                    raise ConfigError(f"--chat-template {override} cannot be used: {why}") from error
                self._missing = f"The model's chat template cannot be used ({why}); give one with --chat-template."
                logger.warning("The model's chat template %r cannot be used: %s", name, why)
                del self._templates[name]
            except InvalidRequest:
                continue  # it only wants more than one message


def _override(name: str) -> ChatTemplate:
    path = Path(name)
    if path.is_file():
        if path.suffix == ".json":
            raise ConfigError(f"--chat-template {name} cannot be used: it is JSON, and must be a Jinja template.")
        try:
            return ChatTemplate(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, jinja2.TemplateSyntaxError) as error:
            raise ConfigError(f"--chat-template {name} cannot be used: {error}") from error
    if name not in BUILTIN_TEMPLATES:
        known = ", ".join(sorted(BUILTIN_TEMPLATES))
        raise ConfigError(f"--chat-template {name}: no such file, and not one of the built-in templates ({known}).")
    return ChatTemplate(BUILTIN_TEMPLATES[name])


def _fit(message: Message, template: ChatTemplate, form: CallForm) -> dict[str, object]:
    """Returns the message as the template expects it. Missing and null are the same to us, but not to a template."""
    fitted = {key: value for key, value in message.items() if value is not None}
    fitted["content"] = _fit_content(message, template)
    if fitted.get("role") == "developer" and not template.knows_developer:
        fitted["role"] = "system"
    if isinstance(calls := fitted.get("tool_calls"), list):
        fitted["tool_calls"] = [_with_arguments(call, form) for call in calls]
        fitted["content"] = fitted["content"] or form.no_text
    # The template of gpt-oss refuses a message with calls that has a text and thoughts, and shows the text as thought.
    if THOUGHTS in fitted and not (fitted["content"] and calls):
        fitted.setdefault(template.thought_field, fitted[THOUGHTS])
    return fitted


def _fit_content(message: Message, template: ChatTemplate) -> object:
    content = message.get("content")
    if content is None:
        return ""
    if not isinstance(content, list):
        return content if template.takes_strings else [{"type": "text", "text": content}]
    texts, role = [_text_of(part) for part in content], message.get("role")
    if template.content_format == "string" or (role == "tool" and template.takes_strings):
        return " ".join(texts)
    # Templates that loop over a user's parts may print those of another message as Python prints a list, or only read
    # the first one. Those that loop over all of them write nothing between two texts.
    return "".join(texts) if texts and role != "user" and template.takes_strings else content


def _text_of(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": kind}:
            raise InvalidRequest(f"Content of type {kind!r} is not supported by this model.", param="messages")
    raise InvalidRequest("Each part of a message's content must have a type.", param="messages")


def _with_arguments(call: object, form: CallForm) -> object:
    """Returns a tool call whose arguments are an object, as templates expect, or text, if it expects that; clients send
    them as JSON text, and a call without arguments as no text at all.
    """
    match call:
        case {"function": dict(function), **rest}:
            arguments = function.get("arguments") or "{}"
            if isinstance(arguments, str):
                try:
                    arguments = json.loads(arguments) if arguments.strip() else {}
                except (ValueError, RecursionError):
                    return call
            if isinstance(arguments, dict):
                written = json.dumps(arguments, ensure_ascii=False) if form.arguments_as_text else arguments
                return {**rest, "function": {**function, "arguments": written}}
    return call


def _written(
    template: ChatTemplate, variables: Mapping[str, object], quick: bool, cancelled: threading.Event | None
) -> str:
    """Renders the prompt, at the second attempt with complete tools."""
    try:
        return template.render(variables, quick=quick, cancelled=cancelled)
    except TooMuchTemplate:
        raise
    except InvalidRequest:
        tools = variables["tools"]
        completed = [_completed(tool) for tool in tools] if isinstance(tools, list) else None
        if completed == tools:
            raise
    return template.render({**variables, "tools": completed}, quick=quick, cancelled=cancelled)


def _completed(tool: Mapping[str, object]) -> Mapping[str, object]:
    """Returns a tool with all fields that OpenAI lets clients leave out, for templates that need them."""
    match tool:
        case {"function": dict(function)}:
            parameters = {**_NO_PARAMETERS, **(function.get("parameters") or {})}
            return {**tool, "function": {"description": "", **function, "parameters": parameters}}
    return tool


def _explained(error: InvalidRequest, conversation: Sequence[Message], form: CallForm) -> InvalidRequest:
    """Returns a template's refusal together with what it may not have expected: arguments of a call that are no object.
    The template's own words are often about its code.
    """
    for message in [] if form.arguments_as_text else conversation:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            match call:
                case {"function": {"name": str(name), "arguments": arguments}} if not isinstance(arguments, dict):
                    told = f"The arguments of the call of {name!r} are no JSON object. {error.message}"
                    return InvalidRequest(told, param="messages")
    return error


def _with_cut(message: dict[str, object]) -> dict[str, object]:
    """Returns the message with a mark at the end of its text, and a space behind it that shows whether the template
    trims.
    """
    if message.get("role") != "assistant":
        raise InvalidRequest("continue_final_message needs a final message of the assistant.", param="messages")
    if message.get("tool_calls"):
        # Templates write them behind the text that the answer would continue.
        raise InvalidRequest("continue_final_message needs a final message without tool_calls.", param="messages")
    match message["content"]:
        case str(text):
            return {**message, "content": f"{text}{_CUT} "}
        case [*parts, {"type": "text", "text": str(text)}]:
            return {**message, "content": [*parts, {"type": "text", "text": f"{text}{_CUT} "}]}
    raise InvalidRequest("continue_final_message needs a final message that ends in text.", param="messages")


def _cut(rendered: str) -> str:
    before, mark, behind = rendered.rpartition(_CUT)
    if not mark:
        message = "The chat template drops the end of the final message, so that it cannot be continued."
        raise InvalidRequest(message, param="continue_final_message")
    # If the template trims a message's text, it would also have trimmed the text before the mark.
    return before if behind.startswith(" ") else before.rstrip()
