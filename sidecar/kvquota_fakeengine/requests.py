"""What clients may ask for, read as vLLM 0.32 reads it: pydantic's lenient types, its limits, its refusals.

It does not know HTTP beyond the status of a refusal, nor what becomes of a request that was understood.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvquota_fakeengine import tokens
from kvquota_fakeengine.sequences import Finish, Work
from kvquota_fakeengine.settings import EngineSettings

_Value = TypeVar("_Value")

# What the completions route produces where nothing is asked for.
_COMPLETION_DEFAULT_TOKENS = 16
_SALT_CHARACTERS = 128
_SALT_FORBIDDEN = frozenset("@/\\\x00")


class Refused(Exception):  # noqa: N818 - a refusal is an answer, not an error of this program
    """An answer other than 200: status, message, type and the parameter at fault.

    Without a `kind` it is the web framework's own refusal, which has another shape.
    """

    def __init__(self, status: int, message: str, kind: str | None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """`works` has the sequences of the first prompt before those of the second; `choices` of them each."""

    prompts: tuple[tuple[int, ...], ...]
    choices: int
    works: tuple[Work, ...]
    stream: bool
    include_usage: bool
    continuous_usage: bool

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)


def read_object(body: bytes, content_type: str) -> dict[str, Any]:
    """The request's JSON object; a key that occurs twice has its last value."""
    if content_type.lower().split(";", maxsplit=1)[0] != "application/json":
        raise _invalid("Unsupported Media Type: Only 'application/json' is allowed", None)
    if not body:
        raise _invalid("Field required", "body")
    try:
        document = json.loads(body)
    except json.JSONDecodeError as error:
        raise _invalid(f"JSON decode error: {error.msg}", f"body.{error.pos}") from error
    except UnicodeDecodeError as error:
        raise Refused(400, "There was an error parsing the body", None) from error
    if not isinstance(document, dict):
        raise _invalid("Input should be a valid dictionary", "body")
    return document


def read_chat(document: Mapping[str, Any], settings: EngineSettings, priority_header: str | None) -> GenerateRequest:
    messages = _messages(document)
    limit = _optional(document, "max_completion_tokens", _integer)
    if limit is None:
        limit = _optional(document, "max_tokens", _integer)
    common = _Common.read(document, priority_header)
    require_model(document, settings)
    if not messages:
        raise _bad("Cannot apply chat template to an empty conversation. Provide at least one message.")
    prompt = tuple(tokens.encode(tokens.render_chat(messages, generation_prompt=True)))
    return common.request((prompt,), limit, settings)


def read_completion(
    document: Mapping[str, Any], settings: EngineSettings, priority_header: str | None
) -> GenerateRequest:
    prompts = prompts_of(document.get("prompt"), "prompt")
    limit = _optional(document, "max_tokens", _integer) if "max_tokens" in document else _COMPLETION_DEFAULT_TOKENS
    common = _Common.read(document, priority_header)
    require_model(document, settings)
    return common.request(prompts, limit, settings)


def read_tokenize(document: Mapping[str, Any], settings: EngineSettings) -> list[int]:
    """The tokens of a `prompt`, or of `messages` laid out as a chat."""
    require_model(document, settings)
    if "messages" in document:
        generation_prompt = bool(document.get("add_generation_prompt", True))
        return tokens.encode(tokens.render_chat(_messages(document), generation_prompt=generation_prompt))
    prompt = document.get("prompt")
    if not isinstance(prompt, str):
        raise _invalid("Input should be a valid string", "body.prompt")
    return tokens.encode(prompt)


def require_model(document: Mapping[str, Any], settings: EngineSettings) -> None:
    """No model, or an empty name, means the one that is served."""
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise _invalid("Input should be a valid string", "body.model")
    if model and model != settings.model:
        message = f"The model `{model}` does not exist. Valid aliases: {settings.model}."
        raise Refused(404, message, "NotFoundError", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """What both generating routes take."""

    choices: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    ignore_eos: bool
    salt: str | None
    priority: int

    @classmethod
    def read(cls, document: Mapping[str, Any], priority_header: str | None) -> "_Common":
        stream = bool(_optional(document, "stream", _boolean))
        options = document.get("stream_options")
        if options and not stream:
            raise _bad("Stream options can only be defined when `stream=True`.", "stream_options")
        if options is not None and not isinstance(options, dict):
            raise _invalid("Input should be a valid dictionary", "body.stream_options")
        include_usage = bool(_optional(options or {}, "include_usage", _boolean))
        choices = _optional(document, "n", _integer)
        if choices is not None and choices < 1:
            raise _bad(f"n must be at least 1, got {choices}.")
        return cls(
            choices=1 if choices is None else choices,
            stream=stream,
            include_usage=include_usage,
            continuous_usage=include_usage and bool(_optional(options or {}, "continuous_usage_stats", _boolean)),
            ignore_eos=bool(_optional(document, "ignore_eos", _boolean)),
            salt=salt_of(document),
            priority=_priority(document, priority_header),
        )

    def request(
        self, prompts: tuple[tuple[int, ...], ...], limit: int | None, settings: EngineSettings
    ) -> GenerateRequest:
        works = tuple(self._work(prompt, limit, settings) for prompt in prompts for _ in range(self.choices))
        return GenerateRequest(
            prompts=prompts,
            choices=self.choices,
            works=works,
            stream=self.stream,
            include_usage=self.include_usage,
            continuous_usage=self.continuous_usage,
        )

    def _work(self, prompt: tuple[int, ...], limit: int | None, settings: EngineSettings) -> Work:
        room = _output_room(len(prompt), limit, settings.max_model_len)
        stops = not self.ignore_eos and settings.answer_tokens <= room
        return Work(
            prompt=prompt,
            output_tokens=settings.answer_tokens if stops else room,
            finish=Finish.STOP if stops else Finish.LENGTH,
            salt=self.salt,
            priority=self.priority,
        )


def _output_room(prompt_tokens: int, limit: int | None, max_model_len: int) -> int:
    """How many tokens the answer may get: what is asked for, silently cut to what the context leaves."""
    require_fit(prompt_tokens, max_model_len)
    if limit is not None and limit > max_model_len:
        raise _bad(f"max_tokens={limit} cannot be greater than max_model_len={max_model_len}.", "max_tokens")
    room = max_model_len - prompt_tokens
    room = room if limit is None else min(limit, room)
    if room < 1:
        raise _bad(f"max_tokens must be at least 1, got {room}.", "max_tokens")
    return room


def require_fit(prompt_tokens: int, max_model_len: int) -> None:
    """A prompt has a token, and no more than the context."""
    if prompt_tokens == 0:
        raise _bad("The decoder prompt cannot be empty")
    if prompt_tokens > max_model_len:
        message = (
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least"
            f" {prompt_tokens} input tokens. Please reduce the length of the input prompt."
        )
        raise _bad(message, "input_tokens")


def read_rank(header: str | None, settings: EngineSettings) -> int | None:
    """The data-parallel rank that a request names; a header that is no number is as good as none."""
    try:
        rank = None if header is None else int(header)
    except ValueError:
        return None
    if rank is not None and not 0 <= rank < settings.ranks:
        raise _bad(f"data_parallel_rank {rank} is out of range [0, {settings.ranks}).")
    return rank


def _messages(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    messages = document.get("messages")
    if not isinstance(messages, list):
        raise _invalid("Input should be a valid list", "body.messages")
    return [_message(message, f"body.messages.{number}") for number, message in enumerate(messages)]


def _message(message: Any, where: str) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise _invalid("Field required", f"{where}.role")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message["role"], content or ""
    if not isinstance(content, list):
        raise _invalid("Input should be a valid string or list", f"{where}.content")
    return message["role"], "\n".join(_text_part(part, where) for part in content)


def _text_part(part: Any, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise _invalid("Only text parts are understood", f"{where}.content")


def prompts_of(prompt: Any, field: str) -> tuple[tuple[int, ...], ...]:
    """A text, a list of token ids, a list of texts or a list of lists of token ids."""
    if prompt is None or prompt == "":
        raise _bad("Either prompt or prompt_embeds must be provided and non-empty.", field)
    if isinstance(prompt, str):
        return (tuple(tokens.encode(prompt)),)
    if not isinstance(prompt, list):
        raise _invalid("Input should be a valid list", f"body.{field}")
    if not prompt:
        raise _bad("You must pass at least one prompt")
    if all(isinstance(item, str) for item in prompt):
        return tuple(tuple(tokens.encode(item)) for item in prompt)
    if all(isinstance(item, list) for item in prompt):
        return tuple(_token_ids(item, field) for item in prompt)
    return (_token_ids(prompt, field),)


def _token_ids(items: Sequence[Any], field: str) -> tuple[int, ...]:
    for number, item in enumerate(items):
        if not isinstance(item, int) or isinstance(item, bool):
            raise _invalid("Input should be a valid integer", f"body.{field}.{number}")
        if not 0 <= item < tokens.VOCABULARY:
            raise _bad(f"Token id {item} is out of vocabulary")
    return tuple(items)


def salt_of(document: Mapping[str, Any]) -> str | None:
    value = document.get("cache_salt")
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise _bad("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(value) > _SALT_CHARACTERS or not _SALT_FORBIDDEN.isdisjoint(value):
        message = (
            f"Parameter 'cache_salt' must be at most {_SALT_CHARACTERS} characters and must not contain '@', '/', '\\',"
            " or NUL."
        )
        raise _bad(message, "cache_salt")
    return value


def _priority(document: Mapping[str, Any], header: str | None) -> int:
    """The header wins over the body; a header that is no number is as good as none."""
    asked = _optional(document, "priority", _integer) or 0
    try:
        return asked if header is None else int(header)
    except ValueError:
        return asked


def _optional(document: Mapping[str, Any], name: str, read: Callable[[Any], _Value | None]) -> _Value | None:
    value = document.get(name)
    if value is None:
        return None
    understood = read(value)
    if understood is None:
        raise _invalid("Input should be of another type", f"body.{name}")
    return understood


def _integer(value: Any) -> int | None:
    """Whole numbers, also written as text or with a fraction of zero, as pydantic takes them."""
    try:
        whole = isinstance(value, (int, str)) or (isinstance(value, float) and value == int(value))
        return int(value) if whole else None
    except (ValueError, OverflowError):
        return None


def _boolean(value: Any) -> bool | None:
    """What pydantic takes for true and false."""
    meaning = {"true": True, "yes": True, "on": True, "t": True, "y": True, "1": True}
    meaning |= {"false": False, "no": False, "off": False, "f": False, "n": False, "0": False}
    return meaning.get(str(value).lower()) if isinstance(value, (bool, int, str)) else None


def _bad(message: str, param: str | None = None) -> Refused:
    suffix = f" (parameter={param})" if param else ""
    return Refused(400, message + suffix, "BadRequestError", param)


def refuse_body(message: str) -> Refused:
    """A body that has the wrong shape."""
    return _invalid(message, "body")


def _invalid(message: str, param: str | None) -> Refused:
    return Refused(400, f"1 validation error:\n  {message}", "Bad Request", param)
