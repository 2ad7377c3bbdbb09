"""A compose project of the real services without building anything: an empty image over the host's own files.

The image holds nothing but the links and folders that a file system begins with; Python, its packages and
this checkout are mounted read-only from where they are. Needs an engine on this machine.
"""

from __future__ import annotations

import io
import os
import secrets
import socket
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.tools import ROOT, tool

IMAGE = "shoal-cli-test"
SCRAPE_EVERY_S = 1


@dataclass(frozen=True)
class SmallProject:
    """A folder with a docker-compose.yml, and the name it is to have."""

    name: str
    folder: Path
    prometheus: str

    def shoal(
        self, *arguments: str, timeout_s: float = 240, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs `shoal` in the folder, for this project."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "shoal.cli", *arguments, "--project", self.name]

    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def make_project(folder: Path, *, num_actors: int) -> SmallProject:
    """Writes the files. Nothing is started."""
    name = f"shoalclitest{os.getpid()}"
    port = free_port()
    prometheus = str(Path(tool("prometheus")).resolve())
    (folder / "run.yaml").write_text(_configuration())
    (folder / "prometheus.yml").write_text(yaml.safe_dump(_scraping()))
    services: dict[str, Any] = {
        "actor": _service("actor", folder) | {"scale": num_actors},
        "inference": _service("inference", folder),
        "replay-0": _service("replay", folder, "replay"),
        "learner": _service("learner", folder)
        | {
            "volumes": [*_mounts(folder), "run:/data"],
            # A connection that is taken is enough here.
            "healthcheck": {
                "test": ["CMD", "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/50050"],
                "interval": "1s",
                "retries": 60,
            },
        },
        "prometheus": {
            "image": IMAGE,
            "command": [
                prometheus,
                "--config.file=/etc/shoal/prometheus.yml",
                "--storage.tsdb.path=/tmp/prometheus",
            ],
            "volumes": _mounts(folder, Path(prometheus)),
            "ports": [f"127.0.0.1:{port}:9090"],
            "stop_grace_period": "1s",
        },
    }
    compose = {"services": services, "volumes": {"run": {}}}
    (folder / "docker-compose.yml").write_text(yaml.safe_dump(compose, sort_keys=False))
    return SmallProject(name, folder, f"127.0.0.1:{port}")


def import_image() -> None:
    """The empty image."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in ("etc", "tmp", "usr", "proc", "sys", "dev", "data"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        for name in ("bin", "lib", "lib64", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
    subprocess.run(
        ["docker", "import", "-", IMAGE],
        input=content.getvalue(),
        check=True,
        capture_output=True,
        timeout=60,
    )


def remove_image() -> None:
    subprocess.run(["docker", "image", "rm", IMAGE], capture_output=True, timeout=60)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def _service(name: str, folder: Path, alias: str | None = None) -> dict[str, Any]:
    upper = name.upper()
    listen = {"HEALTH": "50050", "METRICS": "9464"}
    grpc = {"inference": "50051", "replay": "50061", "learner": "50071"}
    if name in grpc:
        listen["GRPC"] = grpc[name]
    environment = {f"SHOAL__{upper}__LISTEN__{key}": f"0.0.0.0:{port}" for key, port in listen.items()}
    environment |= {f"SHOAL__ADDRESSES__{key.upper()}": f"{key}:{port}" for key, port in grpc.items()}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return {
        "image": IMAGE,
        "command": [sys.executable, "-m", f"services.{name}", "--config", "/etc/shoal/run.yaml"],
        "working_dir": str(ROOT),
        "environment": environment,
        "volumes": _mounts(folder),
        "restart": "on-failure",
        "stop_grace_period": "15s",
        "networks": {"default": {"aliases": [alias]} if alias else {}},
    }


def _mounts(folder: Path, *also: Path) -> list[str]:
    """What the host has, where it has it."""
    packages = Path(sys.prefix).resolve()
    places = {Path("/usr"), Path(sys.base_prefix), packages, ROOT, Path(sys.prefix), *also}
    return [
        *(f"{place}:{place}:ro" for place in sorted(places) if not _is_within_another(place, places)),
        f"{folder}:/etc/shoal:ro",
    ]


def _is_within_another(place: Path, places: set[Path]) -> bool:
    return any(place != other and place.is_relative_to(other) for other in places)


def _configuration() -> str:
    preset = yaml.safe_load((ROOT / "configs/cartpole.yaml").read_text())
    preset["security"] = {"token": secrets.token_hex(16)}
    preset.setdefault("run", {})["dir"] = "/data/run"
    # Small enough for four actors, a learner and the rest on two cores.
    preset.setdefault("actor", {}).update({"envs": 64, "groups": 2})
    preset["stop"] = {}
    return yaml.safe_dump(preset)


def _scraping() -> dict[str, Any]:
    return {
        "global": {"scrape_interval": f"{SCRAPE_EVERY_S}s", "scrape_timeout": f"{SCRAPE_EVERY_S}s"},
        "scrape_configs": [
            {
                "job_name": job,
                "dns_sd_configs": [
                    {"names": [job], "type": "A", "port": 9464, "refresh_interval": f"{SCRAPE_EVERY_S}s"}
                ],
            }
            for job in ("actor", "inference", "replay", "learner")
        ],
    }
