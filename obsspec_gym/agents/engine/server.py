"""Any number of OpenAI-compatible servers (vLLM, SGLang ...) as one engine.

Token ids in and out over the completions API, streamed, so that a generation can be kept while it is unfinished and
ends at the server when it is cancelled. Over several servers each conversation stays where its prefix is cached.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from obsspec_gym.agents.engine.arguments import as_token_ids, check_seed
from obsspec_gym.agents.engine.base import Capabilities, EngineLoad, Weights
from obsspec_gym.agents.engine.servers.client import ServerClient
from obsspec_gym.agents.engine.servers.loop import LoopThread
from obsspec_gym.agents.engine.servers.pool import Pool
from obsspec_gym.agents.engine.servers.probe import Abilities, find_model, probe
from obsspec_gym.agents.engine.servers.reload import WeightReload
from obsspec_gym.agents.engine.servers.requests import Request
from obsspec_gym.agents.engine.servers.routing import Imbalance, Router
from obsspec_gym.agents.generation import Generation
from obsspec_gym.errors import ClosedError, InvalidArgumentError
from obsspec_gym.types import Completion, Hint, Priority, Sampling, TokenIds

__all__ = ["Imbalance", "ServerEngine", "WeightReload"]

_COLDEST = 0.01
"""Below this (and above 0) vLLM samples at another temperature than it is asked for."""


class ServerEngine:
    """Generates with servers that somebody else runs.

    What the servers can do is found out when it is first needed (``capabilities`` or :meth:`submit`, which then wait
    for a few short completions), or stated. If they honour seeds, a completion is a pure function of (weights,
    prompt, sampling, seed), and speculation is lossless token by token as far as the servers' arithmetic does not
    depend on the batch: in float32 in practice, in bfloat16 not. If they do not, ``capabilities.addressed_noise`` is
    False, and speculation is lossless *in distribution*: the trajectories are as probable as without it, and not the
    same.

    A server that is lost in mid-generation (it fails, falls silent, ends the stream early) loses only time: the
    request starts over from its prompt, at another server if there is one, and nothing of what had arrived is kept.
    After ``attempts`` it ends with :class:`~obsspec_gym.errors.EngineError`, whose reason becomes that of the truncated
    episode. (Without seeds, starting over draws anew. Long completions are more likely to be hit, so where servers are
    lost often, short ones come out slightly too frequent.)

    Drafts cannot be sent over this API. A speculative request that is promoted goes before other speculative ones as
    long as it waits here; at the server it keeps the priority it was sent with.

    Args:
        urls: Where the servers listen, such as ``"http://host:8000"``; all with the same model.
        model: Its name, if a server serves several.
        api_key: Sent as a bearer token.
        capabilities: What the servers can do, instead of asking them. ``priority`` then says that they schedule by
            it, lower first (SGLang: ``--enable-priority-scheduling --schedule-low-priority-values-first``).
        context_length: Tokens the model can attend to, if the servers do not say.
        max_running: Requests sent to one server at once; further ones wait here, committed before speculative ones.
        attempts: How often a request is sent at most.
        connect_timeout: Seconds until a connection must be there.
        timeout: Seconds without a word from a server after which it is lost; also how long its own queue may take.
        imbalance: When a conversation is moved to a server that is less busy.
        reload: How the servers are given new weights.
        seed: Of the choice among equally busy servers.

    Raises:
        InvalidArgumentError: If an argument is not what is expected; no server has been asked then.
        MissingExtraError: If httpx2 or tenacity is not installed.

    Example:
        >>> engine = ServerEngine(["http://127.0.0.1:8000", "http://127.0.0.1:8001"])
        >>> engine.load().running
        0
        >>> engine.close()
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        model: str | None = None,
        api_key: str | None = None,
        capabilities: Capabilities | None = None,
        context_length: int | None = None,
        max_running: int = 256,
        attempts: int = 4,
        connect_timeout: float = 5.0,
        timeout: float = 120.0,
        imbalance: Imbalance = Imbalance(),
        reload: WeightReload | None = None,
        seed: int = 0,
    ) -> None:
        urls = (urls,) if isinstance(urls, str) else tuple(urls)
        if not urls or len(set(urls)) != len(urls):
            raise InvalidArgumentError(f"expected the URLs of one or more servers, each once, got {list(urls)}")
        for name, value in (("max_running", max_running), ("attempts", attempts), ("context_length", context_length)):
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name} must be >= 1, got {value}")
        if not (connect_timeout > 0 and timeout > 0):
            raise InvalidArgumentError(f"timeouts must be > 0 seconds, got {connect_timeout} and {timeout}")
        if capabilities is not None and capabilities.drafts:
            raise InvalidArgumentError("drafts cannot be sent to servers: capabilities.drafts must be False")
        self._clients = [
            ServerClient(url, api_key=api_key, connect_timeout=connect_timeout, timeout=timeout) for url in urls
        ]
        self._pool = Pool(self._clients, Router(imbalance, seed=seed), places=max_running, attempts=attempts)
        self._model = model
        self._stated = capabilities
        self._context = context_length
        self._reload = reload
        self._numbers = itertools.count()
        self._closed = False
        self._asking = threading.Lock()
        self._known: _Known | None = None
        self._thread = LoopThread("obsspec-servers", self._pool.close)
        self._finalizer = weakref.finalize(self, self._thread.close)

    @property
    def capabilities(self) -> Capabilities:
        """What all the servers can do.

        ``addressed_noise`` is False where a server does not honour seeds, or servers answer the same seed with other
        tokens: speculation is then lossless in distribution. ``cancel`` is False where a server may go on with a
        request that nobody reads any more. ``priority`` is always True: requests wait here where they do not wait at
        the servers.

        Raises:
            EngineError: If a server cannot be reached or gives no token ids.
            InvalidArgumentError: If the servers serve different models.
        """
        return self._ask().capabilities

    @property
    def weights_version(self) -> int:
        """How many times the weights were updated."""
        return self._pool.version

    def submit(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        *,
        hint: Hint | None = None,
        priority: Priority = Priority.COMMITTED,
        draft: Sequence[int] = (),
    ) -> Generation:
        """Starts a generation; see :meth:`obsspec_gym.agents.engine.base.Engine.submit`.

        ``hint`` decides which server it goes to. Token ids that are not in the vocabulary are refused by the server:
        the generation then ends with ``EngineError``.
        """
        prompt = self._check(prompt_ids, sampling, seed, draft)
        context = self._ask().context
        room = sampling.max_tokens if context is None else min(sampling.max_tokens, context - len(prompt))
        if room < 1:
            raise InvalidArgumentError(
                f"the prompt must be shorter than the context of {context} tokens, got {len(prompt)}"
            )
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        request = Request(prompt, sampling, seed, room, hint, priority, next(self._numbers), future)
        self._pool.admit(request)
        if not self._thread.soon(self._pool.start, request):
            raise ClosedError("this engine is closed")
        return Generation(
            future,
            cancel=lambda: self._thread.soon(self._pool.cancel, request),
            promote=lambda: self._thread.soon(self._pool.promote, request),
            partial=lambda: tuple(request.token_ids),
        )

    def load(self) -> EngineLoad:
        """How busy the servers are with this engine's requests: others' are not seen from here."""
        return self._pool.load()

    def update_weights(self, weights: Weights | None = None) -> int:
        """Has the servers read new weights, while none of them computes for this engine.

        Speculative generations under way end with ``GenerationCancelled``; committed ones start over.

        Args:
            weights: Parameters by Hugging Face's names, all of them; ``None`` if they are in the directory already.

        Raises:
            InvalidArgumentError: If the engine was not told how (``reload=``).
            EngineError: If a server does not take them. Some may have then, and others not: requests fail with that
                reason until an update succeeds.
        """
        if self._closed:
            raise ClosedError("this engine is closed")
        if self._reload is None:
            raise InvalidArgumentError(
                "these servers hold weights of their own and cannot be handed any: ServerEngine(reload=...) says from "
                "which directory they reload them"
            )
        self._ask()
        if weights is not None:
            self._reload.write(weights if isinstance(weights, Mapping) else dict(weights))
        return self._thread.run(self._pool.replace_weights(self._reload.ask))

    def close(self) -> None:
        """Ends what is under way with ``GenerationCancelled``, and the thread and connections. Idempotent."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> ServerEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int, draft: Sequence[int]) -> TokenIds:
        if self._closed:
            raise ClosedError("this engine is closed")
        prompt = as_token_ids("prompt", prompt_ids)
        if not prompt or min(prompt) < 0:
            raise InvalidArgumentError(f"the prompt must be one or more token ids >= 0, got {list(prompt[:10])}")
        if len(draft):
            raise InvalidArgumentError("drafts cannot be sent to servers (capabilities.drafts is False)")
        check_seed(seed)
        if sampling.temperature == 0 and (sampling.top_k or sampling.top_p < 1):
            raise InvalidArgumentError("servers drop top_k and top_p where the temperature is 0: leave them out")
        if 0 < sampling.temperature < _COLDEST:
            raise InvalidArgumentError(
                f"servers sample at temperature 0 or from {_COLDEST} on, got {sampling.temperature}"
            )
        return prompt

    def _ask(self) -> _Known:
        """What is known of the servers, after asking them if nothing is."""
        with self._asking:
            if self._closed:
                raise ClosedError("this engine is closed")
            if self._known is None:
                found = self._thread.run(self._examine_all())
                self._pool.connect(found)
                self._known = _Known.of(found, self._context)
            return self._known

    async def _examine_all(self) -> list[Abilities]:
        return await asyncio.gather(*[self._examine(client) for client in self._clients])

    async def _examine(self, client: ServerClient) -> Abilities:
        if self._stated is None:
            return await probe(client, self._model)
        if self._model is not None and self._context is not None:
            return Abilities(self._model).stated(self._stated)
        found, _ = await find_model(client, self._model)
        return found.stated(self._stated)


@dataclass(frozen=True, slots=True)
class _Known:
    """What holds for all the servers."""

    capabilities: Capabilities
    context: int | None

    @classmethod
    def of(cls, found: Sequence[Abilities], context: int | None) -> _Known:
        models = {can.model for can in found}
        if len(models) > 1:
            raise InvalidArgumentError(f"the servers serve different models: {', '.join(sorted(models))}")
        capabilities = Capabilities(
            addressed_noise=all(can.seeds for can in found) and len({can.sample for can in found}) == 1,
            drafts=False,
            cancel=all(can.abort for can in found),
            priority=True,
            logprobs=all(can.logprobs for can in found),
        )
        contexts = [can.context for can in found if can.context is not None]
        return cls(capabilities, context if context is not None else min(contexts, default=None))
