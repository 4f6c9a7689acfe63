"""A server of the completions API on loopback, with an engine of this package behind it, and faults on demand."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from obsspec_gym.agents.engine.simulated import SimulatedEngine
from obsspec_gym.errors import ObsSpecError
from obsspec_gym.types import Priority, Sampling


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request.

    ``kind``: "status" (answers with ``status``), or after ``after`` tokens: "drop" (the connection is cut), "end" (the
    stream ends in an orderly way), "garbage" (what is no JSON), "error" (an error event), "silent" (nothing comes any
    more), "wait" (nothing comes before ``release()``; that is no fault).
    """

    kind: str
    after: int = 0
    status: int = 500


@dataclass
class CompletionServer:
    """Starts with ``with``, in a thread of its own.

    ``fault(number, body)`` says what goes wrong with the request of that number; requests are numbered from 0, those
    of the probe are not counted: they are the ones with the prompt ``[0]``. An event has up to ``together`` tokens, and
    comes ``pace`` seconds after the one before. Logprobs change by ``wobble`` from request to request.
    """

    engine: Any = field(default_factory=lambda: SimulatedEngine(step_seconds=lambda batch: 0.0))
    seeds: bool = True
    processed: bool = True
    priority: bool = True
    token_ids: bool = True
    stops: bool = True
    owner: str = "vllm"
    model: str = "tiny"
    context: int | None = 1000
    pace: float = 0.0
    wobble: float = 0.0
    together: int = 1
    fault: Callable[[int, dict[str, Any]], Fault | None] = lambda number, body: None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    posts: list[tuple[str, Any]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    aborted: int = 0
    active: int = 0

    def __enter__(self) -> CompletionServer:
        self._numbers, self._draws = itertools.count(), itertools.count()
        self._writers: set[asyncio.StreamWriter] = set()
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def release(self) -> None:
        """Lets all go on that wait."""
        self._loop.call_soon_threadsafe(self._released.set)

    def kill(self) -> None:
        """Cuts every connection and accepts no more."""
        done = threading.Event()

        def cut() -> None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            done.set()

        self._loop.call_soon_threadsafe(cut)
        assert done.wait(10)

    async def _main(self, ready: threading.Event) -> None:
        self._loop, self._stop, self._released = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        self.engine.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; returns whether the connection lives on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        _, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        sent = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(sent) if sent else None
        if path == "/v1/models":
            entry = {"id": self.model, "owned_by": self.owner, "max_model_len": self.context}
            await answer(writer, 200, {"object": "list", "data": [entry]})
        elif path == "/v1/completions":
            return await self._complete(body, reader, writer)
        else:
            self.posts.append((path, body))
            await answer(writer, 500 if path in self.refused else 200, {"success": True})
        return True

    async def _complete(self, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        probing = body["prompt"] == [0]
        fault = None
        if not probing:
            self.bodies.append(body)
            fault = self.fault(next(self._numbers), body)
        if fault is not None and fault.kind == "status":
            await answer(writer, fault.status, {"error": {"message": f"out of order {fault.status}"}})
            return True
        if body.get("priority") and not self.priority:
            await answer(writer, 400, {"error": {"message": "priority scheduling is not enabled", "code": 400}})
            return True
        gone = asyncio.ensure_future(_gone(reader))
        work = asyncio.ensure_future(self._stream(body, writer, fault))
        self.active += 1
        try:
            await asyncio.wait([gone, work], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.aborted += 1
                return False
            return work.result()
        finally:
            self.active -= 1
            work.cancel()
            gone.cancel()
            await asyncio.wait([gone, work])

    async def _stream(self, body: Any, writer: asyncio.StreamWriter, fault: Fault | None) -> bool:
        sampling = Sampling(
            temperature=body["temperature"],
            top_k=max(0, body["top_k"]),
            top_p=body["top_p"],
            max_tokens=body["max_tokens"],
            stop_token_ids=tuple(body["stop_token_ids"]) if self.stops else (),
        )
        seed = body["seed"] if self.seeds else next(self._draws)
        priority = Priority(min(1, body.get("priority", 0)))
        try:
            generation = self.engine.submit(body["prompt"], sampling, seed, priority=priority)
        except ObsSpecError as error:
            await answer(writer, 400, {"error": {"message": str(error), "code": 400}})
            return True
        try:
            completion = await generation
        finally:
            generation.cancel()
        ids = completion.token_ids
        wobble = self.wobble * next(self._draws)
        logprobs = (
            [0.0] * len(ids)
            if self.processed and body["top_k"] == 1
            else [logprob - wobble for logprob in completion.logprobs]
        )
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        position = 0
        while position < len(ids):
            end = position + self.together
            if fault is not None and position <= fault.after < end:
                end = fault.after
            if end > position:
                await asyncio.sleep(self.pace)
                ended = "stop" if ids[-1] in sampling.stop_token_ids else "length"
                await event(writer, self._chunk(ids[position:end], logprobs[position:end], end >= len(ids) and ended))
            if fault is not None and end == fault.after:
                if fault.kind != "wait":
                    return await self._break(fault, writer)
                fault = await self._released.wait() and None
            position = end
        await event(writer, json.dumps({"object": "text_completion", "choices": [], "usage": {"total_tokens": 1}}))
        await event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _chunk(self, ids: Any, logprobs: Any, ended: Any) -> str:
        # Line separators that are none in an event stream: U+2028 stands in a model's output as it is.
        choice: dict[str, Any] = {"index": 0, "text": "\u2028\x85\x0c", "finish_reason": ended or None}
        choice["logprobs"] = {"tokens": [f"<{token}>" for token in ids], "token_logprobs": list(logprobs)}
        if self.token_ids:
            choice["token_ids"] = list(ids)
        return json.dumps({"object": "text_completion", "choices": [choice]}, ensure_ascii=False)

    async def _break(self, fault: Fault, writer: asyncio.StreamWriter) -> bool:
        if fault.kind == "drop":
            writer.transport.abort()
        elif fault.kind == "end":
            await event(writer, "[DONE]")
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        elif fault.kind == "garbage":
            await event(writer, '{"choices": [')
        elif fault.kind == "error":
            await event(writer, json.dumps({"error": {"message": "the engine died", "code": 500}}))
        elif fault.kind == "silent":
            await asyncio.sleep(3600)
        return False


async def _gone(reader: asyncio.StreamReader) -> None:
    """Until the client has closed the connection."""
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.002)


async def event(writer: asyncio.StreamWriter, data: str) -> None:
    """Sends one server-sent event, as one chunk of the response."""
    await chunk(writer, f"data: {data}\n\n".encode())


async def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


async def answer(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    """Sends a whole response."""
    data = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
