"""One server over HTTP. Lives on one event loop."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import urlsplit

from obsspec_gym.agents.engine.servers.protocol import COMPLETIONS, DONE, Piece, ServerLost, fault, quote, read_event
from obsspec_gym.errors import EngineError, InvalidArgumentError, MissingExtraError

try:
    import httpx2
except ImportError as error:
    raise MissingExtraError("httpx2", "server") from error


class ServerClient:
    """Talks to one server. What goes wrong is raised with the server's name before it.

    Args:
        url: Where it listens, with or without the ``/v1`` at the end.
        api_key: Sent as a bearer token.
        connect_timeout: Seconds until a connection must be there.
        timeout: Seconds without a word from the server after which it is lost.

    Raises:
        InvalidArgumentError: If the URL is none.
    """

    def __init__(self, url: str, *, api_key: str | None, connect_timeout: float, timeout: float) -> None:
        self.url = _base(url)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = httpx2.Timeout(timeout, connect=connect_timeout, pool=None)
        self._client: httpx2.AsyncClient | None = None

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """The pieces of one completion. Closing the generator closes the connection, which aborts the request.

        Raises:
            ServerLost: If the server cannot be reached, fails, falls silent or sends garbage.
            ServerRefused: If the request is at fault.
        """
        try:
            async with self._open().stream("POST", self.url + COMPLETIONS, json=dict(body)) as response:
                if response.status_code != 200:
                    raise fault(response.status_code, (await response.aread()).decode(errors="replace"))
                async for event in httpx2.EventSource(response):  # to its end: then the connection can be used again
                    piece = None if event.data == DONE else read_event(event.data)
                    if piece is not None:
                        yield piece
        except httpx2.HTTPError as error:
            raise ServerLost(f"{self.url}: {_said(error)}") from error
        except EngineError as error:
            raise type(error)(f"{self.url} {error}") from None

    async def get(self, path: str) -> Any:
        """The JSON at a path.

        Raises:
            ServerLost, ServerRefused: If there is none.
        """
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What the server answers to a POST: JSON, or ``None`` if it is none.

        Raises:
            ServerLost, ServerRefused: If it fails.
        """
        return await self._ask("POST", path, body)

    async def close(self) -> None:
        """Closes its connections. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        try:
            response = await self._open().request(method, self.url + path, json=None if body is None else dict(body))
        except httpx2.HTTPError as error:
            raise ServerLost(f"{self.url}: {_said(error)}") from error
        if response.status_code != 200:
            failure = fault(response.status_code, response.text)
            raise type(failure)(f"{self.url}{path} {failure}")
        try:
            return response.json()
        except ValueError:
            return None

    def _open(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = httpx2.AsyncClient(
                headers=self._headers,
                timeout=self._timeout,
                verify=self.url.startswith("https:"),  # else certificates are read for nothing
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0),
                trust_env=not _on_this_machine(self.url),  # no proxy stands between a machine and itself
            )
        return self._client


def _base(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise InvalidArgumentError(f"a server's URL is like http://host:8000, got {url!r}")
    return url.rstrip("/").removesuffix("/v1")


def _on_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _said(error: httpx2.HTTPError) -> str:
    return quote(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
