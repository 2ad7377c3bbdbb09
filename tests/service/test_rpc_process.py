"""Real processes built with `run_service`: arguments, exit codes, signals, watchdog, announce file."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import grpc
import pytest
import yaml

from tests.service.rpc_echo import SERVING, dialled, health_of, method
from tests.service.rpc_processes import PATIENCE_S, announced, child


def _run(mode: str, *arguments: str) -> tuple[int, str, str]:
    with child(mode, *arguments) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err


def _serving(announce: Path, *settings: str) -> list[str]:
    chosen = (f"replay.listen.announce={announce}", "replay.listen.grpc=127.0.0.1:0", *settings)
    return [part for setting in chosen for part in ("--set", setting)]


def _stop(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, float]:
    begin = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, err, time.monotonic() - begin


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_0(tmp_path: Path, number: int) -> None:
    announce = tmp_path / "sub" / "announce.json"
    with child("serve", *_serving(announce, "replay.id=shard-7")) as process:
        record = announced(process, announce)
        assert record == {
            "service": "replay",
            "id": "shard-7",
            "pid": process.pid,
            "grpc": record["grpc"],
            "health": record["health"],
            "metrics": "",
        }
        assert asyncio.run(_echo(record["grpc"])) == b"x"
        assert asyncio.run(health_of(record["health"])) == SERVING
        code, err, took = _stop(process, number)
    print(f"{signal.Signals(number).name} to exit 0: {took:.2f} s")
    assert code == 0
    lines = err.splitlines()
    assert [
        line for line in lines if not re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z INFO replay shard-7 \S", line)
    ] == []
    assert f"{signal.Signals(number).name}: draining" in err
    assert lines[-1].endswith("stopped")
    assert [path.name for path in announce.parent.iterdir()] == ["announce.json"]


async def _echo(address: str) -> bytes:
    async with dialled(address) as channel:
        reply: bytes = await method(channel, "Unary")(b"x")
        return reply


def test_a_signal_with_an_open_stream_cuts_it_after_the_drain_and_exits_0(tmp_path: Path) -> None:
    async def hold(process: subprocess.Popen[str], address: str) -> grpc.StatusCode:
        async with dialled(address) as channel:
            call = method(channel, "Hold")(b"")
            assert await call.read() == b"held"
            process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call.read()
            return raised.value.code()

    announce = tmp_path / "announce.json"
    with child("serve", *_serving(announce, "rpc.drain_s=0.5")) as process:
        address = announced(process, announce)["grpc"]
        assert asyncio.run(hold(process, address)) is grpc.StatusCode.UNAVAILABLE
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert "Traceback" not in err


@pytest.mark.parametrize("mode", ["deaf", "stuck"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(tmp_path: Path, mode: str, number: int, code: int) -> None:
    with child(mode, *_serving(tmp_path / "a", "rpc.drain_s=600")) as process:
        announced(process, tmp_path / "a")
        while process.poll() is None:
            # Signals that come together are one: send until two have been seen.
            process.send_signal(number)
            time.sleep(0.05)
        assert process.returncode == code
        assert "exiting at once" in process.communicate()[1]


@pytest.mark.parametrize("mode", ["deaf", "stuck"])
def test_what_does_not_stop_is_ended_by_the_watchdog(tmp_path: Path, mode: str) -> None:
    with child(mode, *_serving(tmp_path / "a", "rpc.drain_s=0.1")) as process:
        announced(process, tmp_path / "a")
        code, err, _ = _stop(process)
    assert code == 1
    assert f"CRITICAL replay {socket.gethostname()} not stopped 1.6 s after the signal" in err


def test_a_thread_left_behind_does_not_hold_up_the_exit_nor_change_its_code(tmp_path: Path) -> None:
    with child("lingering", *_serving(tmp_path / "a", "rpc.drain_s=0.1")) as process:
        announced(process, tmp_path / "a")
        code, err, _ = _stop(process)
    assert code == 0
    assert err.splitlines()[-1].endswith("stopped")


def test_a_crash_is_logged_with_its_traceback_and_exits_1() -> None:
    code, _, err = _run("crash")
    assert code == 1
    assert f"CRITICAL replay {socket.gethostname()} crashed: RuntimeError('something broke')" in err
    assert "Traceback" in err


@pytest.mark.parametrize("mode", ["mistake", "grouped_mistake"])
def test_the_users_mistake_is_one_line_and_exits_2(mode: str) -> None:
    assert _run(mode) == (2, "", "error: the specs differ: a b\n")


def test_a_taken_port_is_one_line_and_exits_2(tmp_path: Path) -> None:
    announce = tmp_path / "announce.json"
    with child("serve", *_serving(announce)) as process:
        address = announced(process, announce)["grpc"]
        code, _, err = _run("serve", "--set", f"replay.listen.grpc={address}")
    assert code == 2
    assert (
        err == f"error: address {address} is in use by another program: stop it or choose another address\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--set", "replay.idd=x"), "did you mean 'replay.id'"),
        (("--config", "/nowhere/run.yaml"), "/nowhere/run.yaml"),
        (("--set", "security.token_file=/nowhere/token"), "/nowhere/token"),
        (("--set", "security.tls.ca=/nowhere/ca.pem"), "/nowhere/ca.pem"),
    ],
)
def test_check_finds_mistakes(arguments: tuple[str, ...], text: str) -> None:
    code, out, err = _run("crash", "--check", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert text in err
    assert err.count("\n") == 1


def test_check_of_a_good_file_says_ok(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("replay: {id: shard-1}\n")
    assert _run("crash", "--check", "--config", str(tmp_path / "run.yaml")) == (0, "ok\n", "")


def test_print_config_shows_the_effective_tree_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("replay: {id: shard-1}\nsecurity: {token: s3cret}\n")
    code, out, err = _run(
        "crash", "--print-config", "--config", str(tmp_path / "run.yaml"), "--set", "rpc.drain_s=3"
    )
    assert (code, err) == (0, "")
    assert "s3cret" not in out
    tree = yaml.safe_load(out)
    assert (tree["replay"]["id"], tree["rpc"]["drain_s"]) == ("shard-1", 3)


def test_an_announce_file_that_cannot_be_written_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = _run("deaf", *_serving(tmp_path / "file" / "announce.json"))
    assert code == 2
    assert "announce.json" in err.splitlines()[-1]
