"""What goes over the wire: events cut anywhere, everything a completion depends on, and errors by their kind."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest
from completion_server import chunk
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("httpx2")

from obsspec_gym.agents.engine.servers.client import ServerClient
from obsspec_gym.agents.engine.servers.protocol import (
    Piece,
    ServerLost,
    ServerRefused,
    completion_body,
    fault,
    read_event,
)
from obsspec_gym.errors import EngineError, InvalidArgumentError
from obsspec_gym.types import Sampling


def choice(**fields):
    return json.dumps({"choices": [{"index": 0, "text": "", **fields}]}, ensure_ascii=False)


TEXT = st.text(st.sampled_from('a\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\U0001f600é\n\r"\\:'), max_size=6)
TOKENS = st.lists(st.tuples(st.integers(0, 2**31), st.floats(-50, 0), TEXT), min_size=1, max_size=6)


async def read_all(parts):
    """What a client makes of a response that arrives in these parts."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in parts:
            await chunk(writer, part)
        writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = ServerClient(url, api_key=None, connect_timeout=5, timeout=5)
    try:
        async with aclosing(client.stream({})) as pieces:
            return [piece async for piece in pieces]
    finally:
        await client.close()
        server.close()
        await server.wait_closed()


@settings(max_examples=40)
@given(TOKENS, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(1, 40), max_size=40), st.booleans())
@example([(1, -1.0, "\u2028")], "\r\n", [1] * 40, True)
def test_events_may_be_cut_anywhere(tokens, newline, cuts, comments):
    events = [
        choice(token_ids=[token], logprobs={"token_logprobs": [logprob]}, text=text) for token, logprob, text in tokens
    ]
    stream = b"".join(
        ((": keep-alive" + newline if comments else "") + f"data: {event}{newline}{newline}").encode()
        for event in [*events, choice(token_ids=[], finish_reason="length"), "[DONE]"]
    )
    parts, position = [], 0
    for cut in cuts:
        parts.append(stream[position : position + cut])
        position += cut
    parts.append(stream[position:])
    pieces = asyncio.run(read_all([part for part in parts if part]))
    assert [token for piece in pieces for token in piece.token_ids] == [token for token, _, _ in tokens]
    assert [logprob for piece in pieces for logprob in piece.logprobs] == [logprob for _, logprob, _ in tokens]
    assert pieces[-1].ended == "length"


def test_the_body_says_everything_that_a_completion_depends_on():
    sampling = Sampling(temperature=0.5, top_k=0, top_p=0.9, max_tokens=7, stop_token_ids=(3, 4))
    body = completion_body("m", (1, 2), sampling, 2**63 - 1, max_tokens=5)
    assert json.loads(json.dumps(body)) == body
    expected = {
        "model": "m",
        "prompt": [1, 2],
        "temperature": 0.5,
        "top_k": -1,
        "top_p": 0.9,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 5,
        "stop_token_ids": [3, 4],
        "ignore_eos": True,
        "seed": 2**63 - 1,
        "return_token_ids": True,
        "stream": True,
    }
    assert {name: body[name] for name in expected} == expected
    assert "priority" not in body
    assert completion_body("m", (1,), sampling, 0, max_tokens=5, priority=0)["priority"] == 0


def test_token_ids_come_by_themselves_or_in_the_names_of_tokens():
    said = {"tokens": ["token_id:7", "token_id:8"], "token_logprobs": [-1, -2.5]}
    assert read_event(choice(logprobs=said)) == Piece((7, 8), (-1.0, -2.5))
    assert read_event(choice(logprobs={**said, "tokens": ["a", "b"]}, token_ids=[7, 8])) == Piece((7, 8), (-1.0, -2.5))
    assert read_event(choice(finish_reason="stop", logprobs=None)) == Piece((), (), "stop")
    assert read_event(choice()) is None
    assert read_event('{"choices": [], "usage": {}}') is None


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        ("{", ServerLost, "no JSON"),
        ("[]", ServerLost, "no event"),
        ('{"a": 1}', ServerLost, "without choices"),
        ('{"choices": [3]}', ServerLost, "without choices"),
        ('{"error": {"message": "boom", "code": 500}}', ServerLost, "boom"),
        ('{"error": {"message": "too long", "code": 400}}', ServerRefused, "too long"),
        ('{"object": "error", "message": "bad", "code": 400}', ServerRefused, "bad"),
        ('{"error": "plain words"}', ServerLost, "plain words"),
        (choice(finish_reason="abort", token_ids=[]), ServerLost, "abort"),
        (choice(token_ids=["x"], logprobs={"token_logprobs": [0]}), ServerLost, "token ids that are none"),
        (choice(token_ids=[1, 2], logprobs={"token_logprobs": [0]}), ServerRefused, "1 for 2 tokens"),
        (choice(token_ids=[1], logprobs={"token_logprobs": [None]}), ServerRefused, "logprob"),
        (choice(token_ids=[1]), ServerRefused, "logprob"),
        (choice(text="hello"), ServerRefused, "no token ids"),
        (choice(text="a", logprobs={"tokens": ["a"], "token_logprobs": [0]}), ServerRefused, "no token ids"),
    ],
)
def test_what_is_no_piece_is_an_error_that_says_so(data, kind, said):
    with pytest.raises(kind, match=said):
        read_event(data)


@pytest.mark.parametrize(
    ("status", "kind"),
    [*((code, ServerRefused) for code in (400, 401, 404)), *((code, ServerLost) for code in (408, 429, 500, 503))],
)
def test_only_what_may_pass_is_worth_another_try(status, kind):
    error = fault(status, '{"error": {"message": "why"}}')
    assert type(error) is kind
    assert str(status) in str(error)
    assert "why" in str(error)
    assert isinstance(error, EngineError)


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://host", "http://", "http://host:99999", "http://host/?a=1"]
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(InvalidArgumentError, match="URL"):
        ServerClient(url, api_key=None, connect_timeout=1, timeout=1)


def test_a_url_may_end_as_openais_clients_want_it():
    for url in ("http://host:1", "http://host:1/", "http://host:1/v1", "http://host:1/v1/"):
        assert ServerClient(url, api_key=None, connect_timeout=1, timeout=1).url == "http://host:1"
