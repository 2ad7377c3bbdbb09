"""The compose project and the Dockerfile as files: closed, and of one mind about names and ports.

`make test-docker` runs them for real.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from shoal.config import load_config
from shoal.rpc.addresses import parse_endpoint
from shoal.rpc.watchdog import LAST_WORDS_S, MARGIN_S
from tests.tools import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
LONG_LIVED = [name for name in OURS if name != "token"]
DOCKERFILE = (ROOT / "deploy/docker/Dockerfile").read_text()
PROMETHEUS = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
GPU = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())["services"]


def environment_of_image(target: str) -> dict[str, str]:
    """What the Dockerfile's last stages set."""
    stage = re.search(rf"^FROM base AS {target}$(.*?)^CMD", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert stage is not None, target
    return dict(re.findall(r"(SHOAL__\w+)=(\S+)", stage[1]))


def names_of(service: str) -> set[str]:
    """Under which others find it."""
    aliases = SERVICES[service].get("networks", {}).get("default", {}).get("aliases", [])
    return {service, *aliases}


def test_only_loopback_is_published() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


@pytest.mark.parametrize("name", OURS)
def test_containers_are_closed(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service, "the image's user is the one to be"


@pytest.mark.parametrize("name", LONG_LIVED)
def test_services_read_the_token_that_one_makes(name: str) -> None:
    service = SERVICES[name]
    assert service["depends_on"] == {"token": {"condition": "service_completed_successfully"}}
    assert "token:/run/shoal:ro" in service["volumes"]
    assert service["environment"]["SHOAL__SECURITY__TOKEN_FILE"] == "/run/shoal/token"
    assert SERVICES["token"]["command"][-1] == "/run/shoal/token"


@pytest.mark.parametrize("name", LONG_LIVED)
def test_a_stop_leaves_time_to_drain(name: str) -> None:
    longest = load_config().rpc.drain_s + MARGIN_S + LAST_WORDS_S
    assert float(SERVICES[name]["stop_grace_period"].rstrip("s")) > longest


@pytest.mark.parametrize("name", LONG_LIVED)
def test_what_they_are_told_is_a_configuration(name: str) -> None:
    target = SERVICES[name]["build"]["target"]
    told = {**environment_of_image(target), **SERVICES[name]["environment"]}
    told = {key: re.sub(r"\$\{\w+:?-(.*?)\}", r"\1", value) for key, value in told.items()}
    config = load_config(ROOT / "configs/cartpole.yaml", environ=told)
    assert config.stop.until_return == 475
    assert config.stop.steps is None
    assert getattr(config, target).listen.metrics == "0.0.0.0:9464"
    assert getattr(config, target).listen.health == "0.0.0.0:50050"


@pytest.mark.parametrize("peer", ["inference", "replay", "learner"])
def test_addresses_are_where_images_listen(peer: str) -> None:
    address = parse_endpoint(SERVICES["actor"]["environment"][f"SHOAL__ADDRESSES__{peer.upper()}"])
    targets = {SERVICES[name]["build"]["target"] for name in LONG_LIVED if address.host in names_of(name)}
    assert targets == {peer}
    listens = parse_endpoint(environment_of_image(peer)[f"SHOAL__{peer.upper()}__LISTEN__GRPC"])
    assert listens.port == address.port


def test_prometheus_looks_at_every_service() -> None:
    for scrape in PROMETHEUS["scrape_configs"]:
        (found,) = scrape["dns_sd_configs"]
        assert found["names"] == [scrape["job_name"]]
        assert found["port"] == 9464
    jobs = {scrape["job_name"] for scrape in PROMETHEUS["scrape_configs"]}
    assert jobs == {SERVICES[name]["build"]["target"] for name in LONG_LIVED}


def test_each_shard_has_a_volume_of_its_own() -> None:
    shards = [name for name in LONG_LIVED if SERVICES[name]["build"]["target"] == "replay"]
    data = [volume for name in shards for volume in SERVICES[name]["volumes"] if volume.endswith(":/data")]
    assert len(shards) == len(set(data)) == 2
    assert {volume.split(":")[0] for volume in data} < set(COMPOSE["volumes"])


def test_every_setting_is_in_the_example_and_no_other() -> None:
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    shown = set(re.findall(r"^#(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    images_for_tests = {"SHOAL_PROMETHEUS_IMAGE", "SHOAL_GRAFANA_IMAGE"}
    assert used - images_for_tests == shown


def test_build_arguments_are_those_of_the_dockerfile() -> None:
    known = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    assert set(SERVICES["actor"]["build"]["args"]) == known
    assert {argument for service in GPU.values() for argument in service["build"]["args"]} <= known


def test_the_gpu_is_given_to_those_who_compute() -> None:
    assert set(GPU) == {"inference", "learner"}
    for name, service in GPU.items():
        config = load_config(environ=service["environment"])
        assert getattr(config, name).device == "cuda"
        assert service["build"]["args"] == {"VARIANT": "cuda"}
