"""The real program: `python -m services.inference`, with the learner's weights service on the test's loop."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import pytest

from services.learner.publisher import WeightsPublisher
from services.learner.versions import VersionCounter
from shoal.clients.inference import ActStream
from shoal.clients.inference_grpc import GrpcInferenceClient
from shoal.clients.weights import WeightsBackend, policy_text
from shoal.errors import SpecMismatchError, UnavailableError
from tests.service.inference_server import ROOT, InferenceProcess, socket_directory, weights_server
from tests.unit.inference.tracer import (
    OTHER_SPEC,
    POLICY,
    SPEC,
    WeightsSource,
    assert_consistent,
    hello,
    snapshot,
    step,
    tensors,
)

Scenario = Callable[[InferenceProcess, Any], Coroutine[Any, Any, None]]


def publisher(directory: Path) -> WeightsPublisher:
    """A real learner's."""
    return WeightsPublisher(VersionCounter(directory / "versions"), POLICY)


def run(scenario: Scenario, *settings: str, learner: Callable[[], WeightsBackend] = WeightsSource) -> str:
    """Runs the scenario with a started server and a learner made on the loop; returns the server's log."""

    async def main() -> str:
        source = learner()
        with socket_directory() as directory:
            async with asyncio.timeout(100), weights_server(directory, source) as address:
                inference = InferenceProcess(directory, address, "replica-0", *settings)
                try:
                    await inference.start()
                    await scenario(inference, source)
                finally:
                    inference.kill()
                return inference.log

    return asyncio.run(main())


async def open_patiently(client: GrpcInferenceClient) -> ActStream:
    while True:
        try:
            return await client.open(hello())
        except UnavailableError:
            await asyncio.sleep(0.02)


async def act_for_ever(stream: ActStream) -> NoReturn:
    while True:
        await stream.act(*step())


def test_it_serves_follows_and_ends_with_sigterm() -> None:
    async def scenario(inference: InferenceProcess, learner: WeightsSource) -> None:
        client = inference.client()
        learner.publish(snapshot(0))
        stream = await client.open(hello())
        assert_consistent(await stream.act(*step()))
        learner.publish(snapshot(8))
        while (reply := await stream.act(*step())).policy_version != 8:
            assert_consistent(reply)
        assert_consistent(reply)
        assert inference.process is not None
        inference.process.send_signal(signal.SIGTERM)
        with pytest.raises(UnavailableError):
            await act_for_ever(stream)
        assert await inference.exit_code() == 0
        await client.close()

    log = run(scenario)
    assert "Traceback" not in log
    assert " ERROR " not in log


def test_after_a_kill_clients_are_told_and_a_restart_goes_on_with_the_newest_weights() -> None:
    async def scenario(inference: InferenceProcess, learner: WeightsSource) -> None:
        client = inference.client()
        learner.publish(snapshot(3))
        stream = await client.open(hello())
        assert_consistent(await stream.act(*step()))
        inference.kill()
        with pytest.raises(UnavailableError):
            await stream.act(*step())
        with pytest.raises(UnavailableError):
            await client.open(hello())
        learner.publish(snapshot(4))
        await inference.start()
        stream = await open_patiently(client)
        assert stream.welcome.policy_version == 4
        assert_consistent(await stream.act(*step()))
        assert learner.accepted == [-1, -1]
        await client.close()

    run(scenario)


def test_an_actor_of_another_spec_is_told_and_the_next_one_is_served(tmp_path: Path) -> None:
    async def scenario(inference: InferenceProcess, learner: WeightsPublisher) -> None:
        learner.accept(SPEC, policy_text(POLICY), -1)
        learner.publish(0, {name: tensor.numpy() for name, tensor in tensors(0).items()})
        client = inference.client()
        for _ in range(2):
            with pytest.raises(SpecMismatchError) as refused:
                await client.open(hello(spec=OTHER_SPEC))
            assert SPEC.describe() in str(refused.value)
            assert OTHER_SPEC.describe() in str(refused.value)
        stream = await client.open(hello())
        assert_consistent(await stream.act(*step()))
        with pytest.raises(SpecMismatchError):
            await client.open(hello(spec=OTHER_SPEC))
        assert_consistent(await stream.act(*step()))
        await client.close()

    log = run(scenario, learner=lambda: publisher(tmp_path))
    assert "Traceback" not in log


def test_another_policy_section_ends_it_with_one_line(tmp_path: Path) -> None:
    """Weights of another activation would load, and act badly."""

    async def scenario(inference: InferenceProcess, learner: WeightsPublisher) -> None:
        client = inference.client()
        with pytest.raises(UnavailableError):
            await client.open(hello())
        assert await inference.exit_code() == 2
        await client.close()

    log = run(scenario, "policy.activation=relu", learner=lambda: publisher(tmp_path))
    (error,) = [line for line in log.splitlines() if line.startswith("error: ")]
    assert policy_text(POLICY) in error
    assert '"activation": "relu"' in error
    assert "Traceback" not in log


def test_a_crash_of_the_model_thread_ends_the_process(tmp_path: Path) -> None:
    # The real program, with a model that fails at its first batch.
    program = tmp_path / "crashing.py"
    program.write_text(
        "from services.inference import __main__ as program\n"
        "from services.inference.runner import Runner\n"
        "from shoal.rpc.process import run_service\n"
        "def crash(*_):\n"
        "    raise MemoryError('no memory for this batch')\n"
        "Runner.run = crash\n"
        "run_service('inference', program.main)\n"
    )

    class Crashing(InferenceProcess):
        command = (sys.executable, str(program))

    async def main() -> None:
        learner = WeightsSource()
        learner.publish(snapshot(0))
        with socket_directory() as directory:
            async with asyncio.timeout(100), weights_server(directory, learner) as address:
                inference = Crashing(directory, address)
                client = inference.client()
                try:
                    await inference.start()
                    stream = await client.open(hello())
                    with pytest.raises(UnavailableError):
                        await stream.act(*step())
                    assert await inference.exit_code() == 1
                finally:
                    inference.kill()
                    await client.close()
                assert "MemoryError: no memory for this batch" in inference.log

    asyncio.run(main())


def refused(*settings: str) -> str:
    """stderr of a start that must fail with exit code 2 and one line."""
    command = [sys.executable, "-m", "services.inference"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in done.stderr
    return errors[0]


def test_a_gpu_that_is_not_there_is_said_at_once() -> None:
    error = refused("inference.device=cuda:63", "inference.listen.grpc=127.0.0.1:0")
    assert "inference.device is 'cuda:63'" in error
    assert "'cpu' or 'auto'" in error


def test_a_taken_port_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in refused(f"inference.listen.grpc={address}")


@pytest.mark.parametrize("flag", ["--check", "--print-config"])
def test_the_configuration_can_be_looked_at_without_starting(flag: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.inference", flag],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.strip()
