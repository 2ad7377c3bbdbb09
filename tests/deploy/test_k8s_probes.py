"""Probes tell the truth: they ask the port that services answer on, and services answer for themselves."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal.config import Config
from tests.deploy.k8s_render import (
    COMBINATIONS,
    ROOT,
    SERVICES,
    Object,
    combination,
    environment,
    needs_kubectl,
    pod,
    render,
    run_yaml,
    the_container,
    workloads,
)

pytestmark = needs_kubectl
every_combination = pytest.mark.parametrize("name", COMBINATIONS)

HEALTH, METRICS = 50050, 9464
GRPC = {"inference": 50051, "replay": 50061, "learner": 50071}
SERVING = health_pb2.HealthCheckResponse.SERVING
PATIENCE_S = 60.0


def budget_s(probe: Object) -> float:
    """How long it may fail before something happens."""
    return float(probe["periodSeconds"] * probe["failureThreshold"])


@every_combination
def test_probes_ask_the_health_port(name: str) -> None:
    for service, workload in workloads(combination(name)).items():
        container = the_container(workload)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports == {"health": HEALTH, "metrics": METRICS} | (
            {"grpc": GRPC[service]} if service in GRPC else {}
        )
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            # Without a name: the health of the whole server.
            assert container[kind]["grpc"] == {"port": HEALTH}
            assert not {"httpGet", "tcpSocket", "exec"} & set(container[kind])
        # A frozen process is not ready within 20 s, and is ended only much later.
        ready = container["readinessProbe"]
        assert ready["failureThreshold"] * (ready["periodSeconds"] + ready["timeoutSeconds"]) < 20
        assert budget_s(container["livenessProbe"]) >= 60 > budget_s(ready)


def test_images_serve_what_probes_ask_for() -> None:
    text = (ROOT / "deploy/docker/Dockerfile").read_text()
    for service in SERVICES:
        (health,) = set(re.findall(rf"SHOAL__{service.upper()}__LISTEN__HEALTH=\S+:(\d+)", text))
        (metrics,) = set(re.findall(rf"SHOAL__{service.upper()}__LISTEN__METRICS=\S+:(\d+)", text))
        assert (int(health), int(metrics)) == (HEALTH, METRICS)


def test_no_probe_ends_what_is_only_slow() -> None:
    found = {service: the_container(workload) for service, workload in workloads(render("local")).items()}
    # Liveness begins when startup is over: reading files may take a day.
    assert budget_s(found["replay"]["startupProbe"]) >= 24 * 3600
    # Environments that hang are the actor's own to find.
    assert budget_s(found["actor"]["livenessProbe"]) > Config().env.step_timeout_s


@contextmanager
def alone(service: str, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The service as its pod would run it, with nobody else there; and the address of its health."""
    objects, announce = render("local"), directory / "announce.json"
    (directory / "run.yaml").write_text(run_yaml(objects))
    (directory / "token").write_text("of-this-test\n")
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(directory),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    for key, value in environment(workloads(objects)[service]).items():
        environ[key] = re.sub("^(/run/shoal|/data)", str(directory), value)
    section = f"SHOAL__{service.upper()}__LISTEN__"
    environ |= {f"{section}{kind}": "127.0.0.1:0" for kind in ("HEALTH", "METRICS")}
    environ |= {f"{section}GRPC": "127.0.0.1:0"} if service in GRPC else {}
    environ |= {f"{section}ANNOUNCE": str(announce)}
    command = [sys.executable, "-m", f"services.{service}", "--config", str(directory / "run.yaml")]
    process = subprocess.Popen(command, env=environ, cwd=directory, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + PATIENCE_S
        while not announce.exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        yield process, json.loads(announce.read_text())["health"]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_alone_is_healthy_until_it_freezes(service: str, tmp_path: Path) -> None:
    """No peer is there, and no probe minds."""
    workload = workloads(render("local"))[service]
    probe = the_container(workload)["readinessProbe"]["grpc"]
    question = health_pb2.HealthCheckRequest(service=probe.get("service", ""))
    with alone(service, tmp_path) as (process, address), grpc.insecure_channel(address) as channel:
        ask = health_pb2_grpc.HealthStub(channel).Check
        until = time.monotonic() + PATIENCE_S
        while ask(question, timeout=PATIENCE_S).status != SERVING:
            # A shard that reads its files, which are none here.
            assert time.monotonic() < until
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(grpc.RpcError) as frozen:
            ask(question, timeout=1.0)
        assert frozen.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        process.send_signal(signal.SIGCONT)
        assert ask(question, timeout=PATIENCE_S).status == SERVING
        process.send_signal(signal.SIGTERM)
        assert process.wait(pod(workload)["terminationGracePeriodSeconds"]) == 0
