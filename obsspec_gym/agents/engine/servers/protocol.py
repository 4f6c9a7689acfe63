"""What is sent to a server and what it streams back: the completions API, with token ids in and out.

The names are those that vLLM and SGLang share. What a completion depends on is always sent in full, because servers
fill in what is missing from the model's ``generation_config.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from obsspec_gym.errors import EngineError
from obsspec_gym.types import Sampling, TokenIds

COMPLETIONS = "/v1/completions"
MODELS = "/v1/models"
DONE = "[DONE]"
"""The event that ends a stream."""

_TOKEN = "token_id:"
_QUOTED = 200


class ServerLost(EngineError):
    """A server did not do what it was asked, and another one, or the same one later, may."""


class ServerRefused(EngineError):
    """A server will not do what it was asked, however often it is asked."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of a stream adds to a completion.

    Attributes:
        token_ids: Sampled tokens.
        logprobs: One a token.
        ended: Why the completion ended (``"stop"``, ``"length"``); ``None`` while it goes on.
    """

    token_ids: TokenIds
    logprobs: tuple[float, ...]
    ended: str | None = None


def completion_body(
    model: str, prompt: Sequence[int], sampling: Sampling, seed: int, *, max_tokens: int, priority: int | None = None
) -> dict[str, Any]:
    """The body of a request for one streamed completion.

    Args:
        model: The model's name.
        prompt: Token ids.
        sampling: How tokens are drawn.
        seed: Of the server's sampler.
        max_tokens: Instead of the sampling's, where the context leaves less room.
        priority: For a server that schedules by it; lower goes first.
    """
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,  # only the stop tokens above end a completion
        "skip_special_tokens": False,
        "logprobs": 1,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
        "n": 1,
    }
    return body if priority is None else {**body, "priority": priority}


def read_event(data: str) -> Piece | None:
    """What an event's data adds, or ``None`` if it holds no tokens (the usage, say).

    Raises:
        ServerLost: If it is no event of the completions API, or tells of the server's failure.
        ServerRefused: If it tells that the request is at fault, or has no token ids or logprobs.
    """
    try:
        event = json.loads(data)
    except ValueError:
        raise ServerLost(f"sent what is no JSON: {quote(data)}") from None
    if not isinstance(event, dict):
        raise ServerLost(f"sent what is no event: {quote(data)}")
    if "error" in event or event.get("object") == "error":
        raise _failure(event)
    choices = event.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise ServerLost(f"sent an event without choices: {quote(data)}")
    if not choices:
        return None
    ids, logprobs = _tokens(choices[0], data)
    ended = choices[0].get("finish_reason")
    if ended not in (None, "stop", "length"):
        raise ServerLost(f"gave the completion up: {quote(str(ended))}")
    return Piece(ids, logprobs, ended) if ids or ended else None


def fault(status: int, text: str) -> EngineError:
    """The error that an HTTP status other than 200 stands for."""
    said = f"answered with status {status}: {quote(_message(text))}"
    temporary = status >= 500 or status in (408, 425, 429)
    return ServerLost(said) if temporary else ServerRefused(said)


def quote(text: str) -> str:
    """A server's words, short and on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _QUOTED else line[:_QUOTED] + " ..."


def _tokens(choice: Mapping[str, Any], data: str) -> tuple[TokenIds, tuple[float, ...]]:
    said = choice.get("logprobs")
    said = said if isinstance(said, dict) else {}
    ids, logprobs = choice.get("token_ids"), said.get("token_logprobs") or []
    if ids is None:
        ids = [_named(token) for token in said.get("tokens") or []]
        if None in ids or (choice.get("text") and not ids):
            raise ServerRefused("returns no token ids (neither return_token_ids nor return_tokens_as_token_ids)")
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise ServerLost(f"sent token ids that are none: {quote(data)}")
    if len(logprobs) != len(ids) or not all(isinstance(logprob, int | float) for logprob in logprobs):
        raise ServerRefused(f"returns no logprob for each token: {len(logprobs)} for {len(ids)} tokens")
    return tuple(ids), tuple(map(float, logprobs))


def _named(token: Any) -> int | None:
    if not isinstance(token, str) or not token.startswith(_TOKEN):
        return None
    digits = token.removeprefix(_TOKEN)
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _failure(event: Mapping[str, Any]) -> EngineError:
    error = event.get("error")
    error = error if isinstance(error, dict) else event
    code = error.get("code")
    return fault(code if isinstance(code, int) else 500, json.dumps(event))


def _message(text: str) -> str:
    """The sentence in an error's JSON, whichever of the usual shapes it has."""
    try:
        answer = json.loads(text)
    except ValueError:
        return text
    while isinstance(answer, dict):
        answer = answer.get("error") or answer.get("message") or answer.get("detail") or str(answer)
    return str(answer)
