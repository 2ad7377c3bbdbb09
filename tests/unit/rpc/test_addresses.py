"""Address syntax, and the address book over a fake resolver."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from shoal.config.connections import RpcSection
from shoal.errors import ConfigError, UnavailableError
from shoal.rpc.addresses import Address, AddressBook, Endpoint, parse_endpoint

RPC = RpcSection(resolve_every_s=7.0)


class Resolver:
    """Names and what they resolve to; a missing name fails, as a real resolver's would."""

    def __init__(self, **names: list[str]) -> None:
        self.names = names
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[Any]:
        self.asked.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [_record(ip, port) for ip in self.names[host]]


def _record(ip: str, port: int) -> Any:
    if ":" in ip:
        return socket.AF_INET6, socket.SOCK_STREAM, 6, "", (ip, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)


def _resolve(book: AddressBook) -> tuple[Address, ...]:
    return asyncio.run(book.resolve())


@pytest.mark.parametrize(
    ("text", "endpoint", "is_local"),
    [
        ("127.0.0.1:50051", Endpoint(host="127.0.0.1", port=50051), True),
        ("127.9.9.9:1", Endpoint(host="127.9.9.9", port=1), True),
        ("localhost:0", Endpoint(host="localhost", port=0), True),
        ("[::1]:80", Endpoint(host="::1", port=80), True),
        ("unix:/run/a.sock", Endpoint(path="/run/a.sock"), True),
        ("unix:///run/a.sock", Endpoint(path="/run/a.sock"), True),
        ("0.0.0.0:80", Endpoint(host="0.0.0.0", port=80), False),
        ("[::]:80", Endpoint(host="::", port=80), False),
        ("10.0.0.1:80", Endpoint(host="10.0.0.1", port=80), False),
        ("[::ffff:10.0.0.1]:80", Endpoint(host="::ffff:10.0.0.1", port=80), False),
        (
            "replay-0.replay_headless.svc:65535",
            Endpoint(host="replay-0.replay_headless.svc", port=65535),
            False,
        ),
        ("localhost.evil.example:80", Endpoint(host="localhost.evil.example", port=80), False),
    ],
)
def test_good_syntax(text: str, endpoint: Endpoint, is_local: bool) -> None:
    assert parse_endpoint(text) == endpoint
    assert endpoint.is_local is is_local
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":50051",
        "host:port",
        "host:65536",
        "host:-1",
        "host:+1",
        "host:5\u0661",
        "::1:50051",
        "[::1]",
        "[zz]:1",
        "http://host:80",
        "host name:80",
        "host:80/path",
        "unix:",
        "unix:relative.sock",
        "unix:/dir/",
        "unix:/" + "x" * 107,
    ],
)
def test_bad_syntax_is_a_config_error_that_shows_the_text(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_endpoint(text)
    assert repr(text) in str(raised.value)


def test_port_zero_cannot_be_dialled() -> None:
    with pytest.raises(ConfigError, match="port 0"):
        AddressBook(["host:0"], RPC)


def test_literals_need_no_look_up() -> None:
    resolver = Resolver()
    book = AddressBook(["unix:/b", "127.0.0.1:2", "[::1]:3", "127.0.0.1:2"], RPC, resolver)
    assert book.current == ()
    expected = (Address("ipv4:127.0.0.1:2"), Address("ipv6:[::1]:3"), Address("unix:/b"))
    assert _resolve(book) == expected == book.current
    assert resolver.asked == []


def test_records_are_replicas_sorted_and_each_once() -> None:
    resolver = Resolver(b=["10.0.0.9", "10.0.0.10", "10.0.0.9"], a=["10.0.0.9"])
    assert _resolve(AddressBook(["b:5", "a:5", "a:6"], RPC, resolver)) == (
        Address("ipv4:10.0.0.10:5", "b"),
        Address("ipv4:10.0.0.9:5", "a"),
        Address("ipv4:10.0.0.9:6", "a"),
    )


def test_a_host_with_both_families_is_one_replica() -> None:
    both = Resolver(localhost=["::1", "127.0.0.1"])
    assert _resolve(AddressBook(["localhost:5"], RPC, both)) == (Address("ipv4:127.0.0.1:5", "localhost"),)
    only6 = Resolver(pod=["fd00::2", "fd00::1", "fe80::1%eth0"])
    assert _resolve(AddressBook(["pod:5"], RPC, only6)) == (
        Address("ipv6:[fd00::1]:5", "pod"),
        Address("ipv6:[fd00::2]:5", "pod"),
        Address("ipv6:[fe80::1%25eth0]:5", "pod"),
    )


def test_the_same_server_by_name_and_by_number_is_one() -> None:
    resolver = Resolver(localhost=["127.0.0.1"])
    (address,) = _resolve(AddressBook(["127.0.0.1:5", "localhost:5"], RPC, resolver))
    assert address.target == "ipv4:127.0.0.1:5"


def test_a_failing_look_up_keeps_what_is_known_and_complains_once(caplog: pytest.LogCaptureFixture) -> None:
    resolver = Resolver(a=["10.0.0.1"], b=["10.0.0.2"])
    book = AddressBook(["a:1", "b:1"], RPC, resolver)
    before = _resolve(book)
    del resolver.names["a"]
    resolver.names["b"] = ["10.0.0.3"]
    with caplog.at_level(logging.WARNING):
        assert _resolve(book) == _resolve(book) == (before[0], Address("ipv4:10.0.0.3:1", "b"))
    assert len(caplog.records) == 1
    assert "a" in caplog.text


def test_an_empty_answer_is_a_failure() -> None:
    resolver = Resolver(a=["10.0.0.1"])
    book = AddressBook(["a:1"], RPC, resolver)
    before = _resolve(book)
    resolver.names["a"] = []
    assert _resolve(book) == before


def test_a_vanished_record_is_dropped() -> None:
    resolver = Resolver(a=["10.0.0.1", "10.0.0.2"])
    book = AddressBook(["a:1"], RPC, resolver)
    assert len(_resolve(book)) == 2
    resolver.names["a"] = ["10.0.0.2"]
    assert _resolve(book) == (Address("ipv4:10.0.0.2:1", "a"),)


def test_nothing_known_yet_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="a:1"):
        _resolve(AddressBook(["a:1"], RPC, Resolver()))


def test_a_resolver_that_never_answers_does_not_hold_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.rpc.addresses.LOOKUP_TIMEOUT_S", 0.0)

    async def never(host: str, port: int) -> Sequence[Any]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(UnavailableError):
        _resolve(AddressBook(["a:1"], RPC, never))


def test_watch_reports_changes_only() -> None:
    resolver = Resolver()
    steps: list[dict[str, list[str]]] = [
        {"a": ["10.0.0.1"]},
        {"a": ["10.0.0.1"]},
        {},
        {"a": ["10.0.0.2", "10.0.0.1"]},
    ]
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if not steps:
            raise asyncio.CancelledError
        resolver.names = steps.pop(0)

    seen: list[tuple[Address, ...]] = []
    book = AddressBook(["a:1"], RPC, resolver, sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(book.watch(seen.append))
    one, two = Address("ipv4:10.0.0.1:1", "a"), Address("ipv4:10.0.0.2:1", "a")
    assert seen == [(one,), (one, two)]
    assert set(slept) == {7.0}
