"""Reading /metrics over a real socket, and peers that are away, silent or odd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from shoal.cli.scrape import fetch, parse, total
from shoal.errors import UnavailableError
from shoal.metrics import start_metrics_server


def test_endpoint_of_a_service_is_read() -> None:
    registry = CollectorRegistry()
    Counter("shoal_actor_env_steps", "Steps.", registry=registry).inc(7)
    server = start_metrics_server("127.0.0.1:0", registry)
    try:
        metrics = parse(asyncio.run(fetch(server.address)))
    finally:
        server.close()
    assert total(metrics, "shoal_actor_env_steps_total") == 7


def test_nobody_there() -> None:
    with pytest.raises(UnavailableError, match="cannot read metrics of"):
        asyncio.run(fetch("127.0.0.1:1"))


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:port", ""])
def test_address_that_is_none(address: str) -> None:
    with pytest.raises(UnavailableError):
        asyncio.run(fetch(address))


@contextlib.asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[str]:
    """A server that says `answer`, or nothing at all until it is closed."""
    closing = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if answer is None:
            await closing.wait()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        closing.set()
        server.close()
        await server.wait_closed()


def ask(answer: bytes | None) -> str:
    timeout_s = 0.3 if answer is None else 60.0

    async def run() -> str:
        async with answering(answer) as address:
            return await fetch(address, timeout_s=timeout_s)

    return asyncio.run(run())


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.0 500 No\r\n\r\n", b"\x00\xff garbage"])
def test_silence_and_nonsense_are_no_answer(answer: bytes | None) -> None:
    with pytest.raises(UnavailableError):
        ask(answer)


def test_body_is_what_follows_the_head() -> None:
    assert ask(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nshoal_x 1\n") == "shoal_x 1\n"
