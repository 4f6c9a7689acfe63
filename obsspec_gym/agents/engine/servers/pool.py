"""Requests to their ends: sent to a server, sent to another one when that is lost, given up with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from obsspec_gym.agents.engine.base import EngineLoad
from obsspec_gym.agents.engine.servers.client import ServerClient
from obsspec_gym.agents.engine.servers.gate import Gate
from obsspec_gym.agents.engine.servers.probe import Abilities
from obsspec_gym.agents.engine.servers.protocol import ServerLost, completion_body
from obsspec_gym.agents.engine.servers.requests import Request
from obsspec_gym.agents.engine.servers.routing import Router
from obsspec_gym.errors import EngineError, GenerationCancelled, MissingExtraError, ObsSpecError
from obsspec_gym.types import Completion, Priority

try:
    from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential
except ImportError as error:
    raise MissingExtraError("tenacity", "server") from error

_AVOIDED = 5.0
"""Seconds for which a server that was lost is asked only if no other is left."""


@dataclass(eq=False, slots=True)
class Server:
    """One server, as the pool sees it.

    Attributes:
        client: Talks to it.
        abilities: What it can do.
        gate: Who is sent to it next.
        requests: Those that are at it or wait for it.
        avoided_until: When it may be asked again, on the loop's clock.
    """

    client: ServerClient
    abilities: Abilities
    gate: Gate
    requests: set[Request] = field(default_factory=set)
    avoided_until: float = 0.0


class Pool:
    """Serves requests with any number of servers. What it does is done on one event loop.

    Args:
        clients: Talk to the servers; one or more. They are the pool's from now on.
        router: Chooses among them.
        places: Requests at one server at once.
        attempts: How often a request is sent at most.
    """

    def __init__(self, clients: Sequence[ServerClient], router: Router, *, places: int, attempts: int) -> None:
        self.version = 0
        self._clients = clients
        self._router = router
        self._places = places
        self._servers: list[Server] = []
        self._requests: set[Request] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._closed = False
        self._unsure = ""  # why the servers' weights may not be the same
        self._retrying = AsyncRetrying(
            retry=retry_if_exception_type(ServerLost),
            stop=stop_after_attempt(attempts),
            wait=wait_random_exponential(multiplier=0.05, max=2.0),
            reraise=True,
        )

    def connect(self, abilities: Sequence[Abilities]) -> None:
        """Says what the servers can do, in the clients' order; before the first request."""
        self._servers = [
            Server(client, can, Gate(self._places)) for client, can in zip(self._clients, abilities, strict=True)
        ]

    def load(self) -> EngineLoad:
        """How busy the servers are with what this pool sent; may be asked from any thread."""
        requests = tuple(self._requests)
        sent = [request for request in requests if request.sent]
        return EngineLoad(
            running=len(sent),
            waiting=len(requests) - len(sent),
            speculative=sum(request.priority is Priority.SPECULATIVE for request in requests),
            cached_tokens=sum(len(request.prompt) + len(request.token_ids) for request in sent),
        )

    def admit(self, request: Request) -> None:
        """Counts a request from the moment it is submitted, from any thread; :meth:`start` follows."""
        self._requests.add(request)

    def start(self, request: Request) -> None:
        """Begins to serve a request; its owner is told how it ended."""
        if self._closed:
            request.settle(_dropped())
        elif request in self._requests:  # not cancelled meanwhile
            request.task = asyncio.get_running_loop().create_task(self._retrying.copy()(self._attempt, request))
            request.task.add_done_callback(partial(self._ended, request))

    def cancel(self, request: Request) -> None:
        """Closes a request's stream."""
        self._requests.discard(request)
        request.restarting = False
        if request.task is not None:
            request.task.cancel()

    def promote(self, request: Request) -> None:
        """From now on it waits among the committed ones."""
        request.priority = Priority.COMMITTED

    async def replace_weights(self, replace: Callable[[ServerClient], Awaitable[None]]) -> int:
        """Has every server take over new weights while none of them computes for this pool.

        Speculative requests end; committed ones start over from their prompts.

        Args:
            replace: Asks one server to.

        Returns:
            The new version.

        Raises:
            EngineError: If a server does not. From then on requests fail with that reason, until an update succeeds:
                the servers' weights may differ.
        """
        self._open.clear()
        try:
            for request in tuple(self._requests):
                if request.task is not None:
                    request.restarting = request.priority is Priority.COMMITTED
                    request.task.cancel()
            while any(server.requests for server in self._servers):
                await asyncio.sleep(0.002)
            replaced = await asyncio.gather(
                *[replace(server.client) for server in self._servers], return_exceptions=True
            )
            failed = next((error for error in replaced if error is not None), None)
            self._unsure = "" if failed is None else f"an update of the servers' weights failed: {failed}"
            if failed is not None:
                raise failed
            self.version += 1
        finally:
            self._open.set()
        return self.version

    async def close(self) -> None:
        """Ends every request with ``GenerationCancelled``, and closes the connections."""
        self._closed = True
        tasks = [request.task for request in tuple(self._requests) if request.task is not None]
        for request in tuple(self._requests):
            self.cancel(request)
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*[client.close() for client in self._clients])

    def _ended(self, request: Request, task: asyncio.Task[Completion]) -> None:
        if task.cancelled() and request.restarting:
            request.restarting = False
            self.start(request)
            return
        self._requests.discard(request)
        request.settle(_outcome(task))

    async def _attempt(self, request: Request) -> Completion:
        """Chooses a server and waits for the whole completion from it."""
        await self._open.wait()
        if self._unsure:
            raise EngineError(self._unsure)
        server = self._choose(request)
        server.requests.add(request)
        try:
            async with server.gate.place(request):
                request.sent = True
                return await self._generate(request, server)
        except ServerLost:
            server.avoided_until = asyncio.get_running_loop().time() + _AVOIDED
            raise
        finally:
            request.sent = False
            server.requests.discard(request)

    def _choose(self, request: Request) -> Server:
        now = asyncio.get_running_loop().time()
        usable = [index for index, server in enumerate(self._servers) if server.avoided_until <= now]
        loads = [len(server.requests) for server in self._servers]
        return self._servers[self._router.choose(request.hint, loads, usable or None)]

    async def _generate(self, request: Request, server: Server) -> Completion:
        abilities, version = server.abilities, self.version
        body = completion_body(
            abilities.model,
            request.prompt,
            request.sampling,
            request.seed,
            max_tokens=request.max_tokens,
            priority=int(request.priority) if abilities.priority else None,
        )
        request.begin()
        try:
            async with aclosing(server.client.stream(body)) as pieces:
                async for piece in pieces:
                    request.add(piece)
        except ServerLost:
            if request.ended is None:  # else nothing is missing
                raise
        try:
            return request.completion(version)
        except EngineError as error:
            raise type(error)(f"{server.client.url} {error}") from None


def _outcome(task: asyncio.Task[Completion]) -> Completion | ObsSpecError:
    if task.cancelled():
        return _dropped()
    error = task.exception()
    if error is None:
        return task.result()
    return error if isinstance(error, EngineError) else EngineError(f"the request failed unexpectedly: {error!r}")


def _dropped() -> GenerationCancelled:
    return GenerationCancelled("the engine dropped the generation: new weights, or closed")
