"""How the public replay client ends: calls of other threads, writers that are not flushed yet."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.clients.replay import ReplayClient
from shoal.errors import InvalidArgumentError, UnavailableError
from tests.service.replay_server import ShardProcess
from tests.service.test_replay_client import columns

TABLES = {
    "full": {"kind": "queue", "max_items": 1},
    "empty": {"kind": "sequence"},
    "a": {"kind": "sequence"},
    "b": {"kind": "sequence"},
    "c": {"kind": "sequence"},
}
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    shard = ShardProcess(tmp_path_factory.mktemp("shard"), "a", f"replay.tables={json.dumps(TABLES)}")
    try:
        asyncio.run(shard.listen())
        yield shard.address.target
    finally:
        shard.kill()


class Call:
    """A call in a thread of its own."""

    def __init__(self, client: ReplayClient, call: Callable[[], object]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while not client._loop._calls and self._thread.is_alive():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    def ends_with(self, text: str) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it waits for ever"
        assert isinstance(self._error, UnavailableError)
        assert str(self._error) == text


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("what", ["next", "append", "flush"])
def test_calls_that_wait_end_when_another_thread_closes(address: str, what: str, shared: bool) -> None:
    other = ReplayClient(address) if shared else None
    client = ReplayClient(address)
    if what == "next":
        call = Call(client, client.sampler("empty", 4).next)
    else:
        writer = client.writer("full", max_unacked_items=1)
        writer.append(columns(0))
        for _ in range(2):
            try:
                writer.append(columns(0), timeout_s=0.2)
            except UnavailableError:
                break
        call = Call(client, writer.flush if what == "flush" else lambda: writer.append(columns(1)))
    client.close()
    call.ends_with("the replay client is closed")
    with pytest.raises(UnavailableError, match="the replay client is closed"):
        client.stats()
    if other is not None:
        assert other.stats().shards
        other.close()


def test_a_writer_that_is_being_made_ends_too() -> None:
    """Of a peer that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ReplayClient(f"127.0.0.1:{silent.getsockname()[1]}")
        call = Call(client, lambda: client.writer("a"))
        client.close()
        call.ends_with("the replay client is closed")


def test_every_writer_is_flushed_and_every_error_told(address: str) -> None:
    spoilt = {**columns(0), "reward": np.full((5, 3), np.nan, np.float32)}
    with (  # noqa: PT012
        pytest.raises(InvalidArgumentError, match="table 'a' has rejected 1 of 1 appends") as raised,
        ReplayClient(address) as client,
    ):
        writers = [client.writer(name, max_unacked_items=1000) for name in "abc"]
        writers[0].append(spoilt)
        writers[1].append(spoilt)
        for number in range(200):
            writers[2].append(columns(number))
    (note,) = raised.value.__notes__
    assert note.startswith("and InvalidArgumentError: table 'b' has rejected 1 of 1 appends")
    with ReplayClient(address) as client:
        assert client.stats().totals["c"].num_items == 600


def test_what_is_closed_is_forgotten(address: str, tmp_path: Path) -> None:
    with ReplayClient(address) as client:
        for _ in range(3):
            with client.writer("a"), client.sampler("a", 1) as sampler:
                assert len(client._open) == 2
            sampler.close()
        assert client._open == []
        kept = client.writer("a")
        client.close()
        assert client._open == []
        kept.close()
