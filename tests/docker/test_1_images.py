"""The four images: built from the Dockerfile, small where they should be, closed, extended in three lines."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import docker
import pytest
from docker.errors import ContainerError
from docker.models.images import Image

from tests.docker.project import ROOT, Project

TARGETS = ("actor", "replay", "inference", "learner")
TORCH_FREE = ("actor", "replay")
EXAMPLE = "shoal-actor-example"


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="module")
def images(engine: docker.DockerClient) -> dict[str, Image]:
    """One after the other: they share most of their stages."""
    began = time.monotonic()
    Project("shoaltest").compose("build", "replay-0", "actor", "inference", "learner")
    print(f"all targets built in {time.monotonic() - began:.0f} s")
    return {target: engine.images.get(f"shoal-{target}") for target in TARGETS}


def _run(engine: docker.DockerClient, image: str, *command: str, user: str | None = None) -> str:
    """As a compose project runs it, and without a network."""
    output: bytes = engine.containers.run(
        image,
        list(command),
        user=user,
        remove=True,
        read_only=True,
        network_mode="none",
        tmpfs={"/tmp": ""},
        cap_drop=["ALL"] if user is None else [],
        stderr=True,
    )
    return output.decode()


@pytest.mark.timeout(1500)
def test_sizes(images: dict[str, Image]) -> None:
    sizes = {target: image.attrs["Size"] / 1e6 for target, image in images.items()}
    print(", ".join(f"{target} {size:.0f} MB" for target, size in sizes.items()))
    # The others hold torch.
    assert max(sizes[target] for target in TORCH_FREE) < min(sizes["inference"], sizes["learner"]) / 2


# Its package, what pip notes of it, and its libraries, wherever they are.
FIND_TORCH = ("find", "/", "-xdev", "-name", "torch", "-o", "-name", "torch-*", "-o", "-name", "libtorch*")


@pytest.mark.parametrize("target", TORCH_FREE)
def test_no_torch(engine: docker.DockerClient, images: dict[str, Image], target: str) -> None:
    assert _run(engine, images[target].id, *FIND_TORCH, user="root") == ""


@pytest.mark.parametrize("target", ["inference", "learner"])
def test_control_the_others_have_torch(
    engine: docker.DockerClient, images: dict[str, Image], target: str
) -> None:
    assert "libtorch" in _run(engine, images[target].id, *FIND_TORCH, user="root")


@pytest.mark.parametrize("target", TARGETS)
def test_closed(engine: docker.DockerClient, images: dict[str, Image], target: str) -> None:
    config = images[target].attrs["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["tini", "--"]
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert _run(engine, images[target].id, "id", "-u").strip() == "10001"
    with pytest.raises(ContainerError, match="Read-only file system"):
        _run(engine, images[target].id, "python", "-c", "open('/app/x', 'w')")


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "actor"])
def test_without_a_token_nothing_listens(
    engine: docker.DockerClient, images: dict[str, Image], target: str
) -> None:
    """Images listen on all addresses of their container, so the services refuse to start without a token.

    Nobody dials an actor: it serves nothing but health and metrics.
    """
    with pytest.raises(ContainerError) as refused:
        _run(engine, images[target].id, "python", "-m", f"services.{target}", "--set", "run.dir=/tmp/run")
    assert refused.value.exit_status == 2
    assert b"refusing to listen on 0.0.0.0" in refused.value.stderr


def test_an_environment_of_ones_own_is_three_lines(
    engine: docker.DockerClient, images: dict[str, Image]
) -> None:
    lines = (ROOT / "deploy/docker/example/Dockerfile").read_text().splitlines()
    assert len(lines) == 3
    assert lines[0] == "FROM shoal-actor"
    file = "deploy/docker/example/Dockerfile"
    build = ["docker", "build", "--quiet", "--tag", EXAMPLE, "-f", file, "examples"]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    try:
        said = _run(engine, EXAMPLE, "shoal", "envs", "check", "own_env.py:GridWorld")
    finally:
        engine.images.remove(EXAMPLE)
    assert "GridWorld" in said
    assert "steps/s" in said
