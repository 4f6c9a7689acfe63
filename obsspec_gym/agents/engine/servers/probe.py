"""What a server can do, found out by asking it: most ignore what they do not know, and say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from obsspec_gym.agents.engine.base import Capabilities
from obsspec_gym.agents.engine.servers.client import ServerClient
from obsspec_gym.agents.engine.servers.protocol import MODELS, Piece, ServerRefused, completion_body
from obsspec_gym.errors import EngineError, InvalidArgumentError
from obsspec_gym.types import Sampling, TokenIds

_ABORT_ON_DISCONNECT = ("vllm", "sglang")
_SCHEDULES_BY_PRIORITY = "vllm"
_PROMPT = (0,)
_RANDOM = Sampling(temperature=2.0, max_tokens=8)
_SHARP = Sampling(temperature=2.0, top_k=1, max_tokens=8)
_SEED, _OTHERS = 1, (2, 3)
_SAME = 1e-4
"""Logprobs closer than this are the same: float32 differs by about 1e-6 between batches, bfloat16 by 1e-2."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What one server can do.

    Attributes:
        model: The name under which it serves the model.
        context: Tokens the model can attend to, if the server says.
        seeds: Whether a seed decides what is sampled, whatever else is in the batch.
        abort: Whether a closed connection ends a request.
        priority: Whether it schedules by priority.
        logprobs: Whether logprobs are of the distribution that tokens are drawn from, filters and all.
        sample: What it samples with the first of the probe's seeds; empty if it was not probed.
    """

    model: str
    context: int | None = None
    seeds: bool = False
    abort: bool = False
    priority: bool = False
    logprobs: bool = False
    sample: TokenIds = ()

    def stated(self, capabilities: Capabilities) -> Abilities:
        """The same server, by its user's word."""
        can = capabilities
        return replace(self, seeds=can.addressed_noise, abort=can.cancel, priority=can.priority, logprobs=can.logprobs)


async def find_model(client: ServerClient, model: str | None) -> tuple[Abilities, str]:
    """What a server says of its model, and of itself.

    Returns:
        Abilities of which only model and context are known, and who the server says it is (``"vllm"``).

    Raises:
        EngineError: If it cannot be asked.
        InvalidArgumentError: If it serves several models and none is named, or does not serve that which is.
    """
    answer = await client.get(MODELS)
    listed = answer.get("data") if isinstance(answer, dict) else None
    entries = [entry for entry in listed or [] if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    names = [entry["id"] for entry in entries]
    if model is None and len(names) != 1:
        raise InvalidArgumentError(f"{client.url} serves {names}: expected one model, or model=... to name it")
    if model is not None and model not in names:
        raise InvalidArgumentError(f"{client.url} serves {names}, not {model!r}")
    entry: Mapping[str, Any] = entries[0 if model is None else names.index(model)]
    context = entry.get("max_model_len")
    return Abilities(entry["id"], context if isinstance(context, int) else None), str(entry.get("owned_by", ""))


async def probe(client: ServerClient, model: str | None) -> Abilities:
    """Asks a server for a few short completions, and judges by what comes.

    Seeds are honoured if the same one gives the same tokens and another one others. That a completion has the same
    logprobs alone and beside others says that the server's arithmetic does not depend on the batch. Logprobs are of
    the processed distribution if a token that top-k leaves no alternative to has probability 1. Priority is known if
    a request with one is accepted by a server that refuses it where it does not schedule by it (vLLM). Whether it
    aborts what nobody reads any more cannot be seen from outside: vLLM and SGLang do.

    Raises:
        EngineError: If the server cannot be reached, or gives no token ids or logprobs.
        InvalidArgumentError: As :func:`find_model`.
    """
    found, kind = await find_model(client, model)
    alone = await _sample(client, found.model, _RANDOM, _SEED)
    again, *others = await asyncio.gather(*[_sample(client, found.model, _RANDOM, seed) for seed in (_SEED, *_OTHERS)])
    sharp = await _sample(client, found.model, _SHARP, _SEED)
    return replace(
        found,
        seeds=_same(alone, again) and any(other.token_ids != alone.token_ids for other in others),
        abort=kind in _ABORT_ON_DISCONNECT,
        priority=kind == _SCHEDULES_BY_PRIORITY and await _takes_priority(client, found.model),
        logprobs=all(abs(logprob) < _SAME for logprob in sharp.logprobs),
        sample=alone.token_ids,
    )


async def _sample(
    client: ServerClient, model: str, sampling: Sampling, seed: int, priority: int | None = None
) -> Piece:
    """A whole completion as one piece."""
    body = completion_body(model, _PROMPT, sampling, seed, max_tokens=sampling.max_tokens, priority=priority)
    async with aclosing(client.stream(body)) as pieces:
        parts = [piece async for piece in pieces]
    ids = tuple(token for piece in parts for token in piece.token_ids)
    if not ids:
        raise EngineError(f"{client.url} ended a completion without tokens")
    return Piece(ids, tuple(logprob for piece in parts for logprob in piece.logprobs))


def _same(one: Piece, other: Piece) -> bool:
    return one.token_ids == other.token_ids and all(
        abs(a - b) < _SAME for a, b in zip(one.logprobs, other.logprobs, strict=True)
    )


async def _takes_priority(client: ServerClient, model: str) -> bool:
    try:
        await _sample(client, model, replace(_SHARP, max_tokens=1), seed=1, priority=1)
    except ServerRefused:
        return False
    return True
