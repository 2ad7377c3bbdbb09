"""Several learners: what the component renders, and the same command lines at work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.config import load_config
from shoal.rpc.addresses import parse_endpoint
from tests.deploy.k8s_learners import Pod, command, free_port, here, running
from tests.deploy.k8s_render import (
    combination,
    environment,
    named,
    needs_kubectl,
    render,
    the_container,
    workloads,
)
from tests.service.learner_rig import PATIENCE_S, TRANSITIONS, pumping, rig

pytestmark = needs_kubectl

GROUP = "aks-spot, learners on gpus"


def test_every_pod_knows_its_place() -> None:
    learner = workloads(combination(GROUP))["learner"]
    number = learner["spec"]["replicas"]
    assert environment(learner)["NNODES"] == str(number) == "2"
    for index in range(number):
        arguments = command(learner, index)
        assert arguments[0] == "torchrun"
        assert {f"--nnodes={number}", f"--node-rank={index}", "--max-restarts=0"} <= set(arguments)
        assert arguments[-4:] == ["-m", "services.learner", "--config", "/etc/shoal/run.yaml"]


def test_the_chief_is_where_everybody_looks_for_it() -> None:
    objects = combination(GROUP)
    learner, inference = workloads(objects)["learner"], workloads(objects)["inference"]
    host = parse_endpoint(load_config(environ=environment(inference)).addresses.learner).host
    # The name of pod 0 of the set, in the zone of its service; found while nobody is ready yet.
    assert host == f"{learner['metadata']['name']}-0.{learner['spec']['serviceName']}"
    assert f"--master-addr={host}" in command(learner, 0)
    assert "--node-rank=0" in command(learner, 0)
    assert named(objects, "Service", "learner")["spec"]["publishNotReadyAddresses"]
    assert learner["spec"]["podManagementPolicy"] == "Parallel"
    # Old and new pods may disagree about their number: nobody waits for a mixture to become ready.
    assert learner["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_one_learner_needs_no_launcher() -> None:
    assert "args" not in the_container(workloads(render("local"))["learner"])


@pytest.mark.timeout(400)  # six imports of torch
def test_a_pod_that_dies_takes_all_back_to_the_checkpoint(tmp_path: Path) -> None:
    learner = workloads(combination(GROUP))["learner"]

    async def body() -> None:
        changes = {"stop": {"until_return": 8.0}, "learner": {"checkpoint_every_s": 0.5}}
        async with rig(tmp_path / "run", **changes) as made, pumping(made):
            sockets, port = Path(made.learner_address.removeprefix("unix:")).parent, free_port()
            pods = [
                Pod(here(command(learner, index), sockets / "run.yaml", port), sockets, index)
                for index in range(learner["spec"]["replicas"])
            ]
            async with running(pods) as lives:
                await made.version_above(10, patience_s=2 * PATIENCE_S)
                while not any((tmp_path / "run" / "checkpoints").glob("0*")):
                    await asyncio.sleep(0.01)
                version = made.versions[-1]
                pods[1].kill()
                # A new life goes on at the next block of versions.
                await made.version_above(version + 2048, patience_s=2 * PATIENCE_S)
                made.only.episode_return = 9.0
                async with asyncio.timeout(PATIENCE_S):
                    await lives
        print(f"exit codes of the pods: {[pod.codes for pod in pods]}")
        # The one that was killed, and the other that cannot go on without it.
        assert all(len(pod.codes) >= 2 and pod.codes[-1] == 0 for pod in pods)
        assert b"another learner has gone" in pods[0].log
        assert b"going on from learner step" in pods[0].log
        result = made.result()
        assert result["reason"] == "until_return"
        assert result["env_steps"] == result["learner_steps"] * TRANSITIONS
        assert made.versions == sorted(set(made.versions))

    asyncio.run(asyncio.wait_for(body(), 6 * PATIENCE_S))
