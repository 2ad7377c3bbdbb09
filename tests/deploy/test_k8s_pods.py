"""What holds for every pod: restricted, given time to drain, its keys known."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from shoal.config import Config, load_config
from shoal.config.ranks import check_shareable
from shoal.config.trainable import check_trainable
from shoal.errors import ConfigError
from shoal.rpc.watchdog import LAST_WORDS_S, MARGIN_S
from tests.deploy.k8s_render import (
    COMBINATIONS,
    K8S,
    ROOT,
    SERVICES,
    Object,
    combination,
    containers,
    environment,
    named,
    needs_kubectl,
    pod,
    render,
    run_yaml,
    the_container,
    workloads,
)

pytestmark = needs_kubectl
every_combination = pytest.mark.parametrize("name", COMBINATIONS)

DRAIN_S = Config().rpc.drain_s + MARGIN_S + LAST_WORDS_S
# The kinds of volumes that the restricted profile allows and that are used here.
VOLUMES = {"configMap", "secret", "emptyDir"}


def openings(workload: Object) -> list[str]:
    """What the restricted profile refuses, and what more we want closed."""
    spec = pod(workload)
    found = [
        key for key in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace") if spec.get(key, False)
    ]
    found += [key for key in ("automountServiceAccountToken", "enableServiceLinks") if spec.get(key, True)]
    security = spec["securityContext"]
    expected = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}
    found += [key for key, value in expected.items() if security.get(key) != value]
    found += [] if security.get("seccompProfile") == {"type": "RuntimeDefault"} else ["seccompProfile"]
    for volume in spec["volumes"]:
        found += [kind for kind in volume if kind != "name" and kind not in VOLUMES]
    for container in containers(workload):
        closed = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        found += [] if container.get("securityContext") == closed else [f"container {container['name']}"]
    return found


@every_combination
def test_pods_are_restricted(name: str) -> None:
    objects = combination(name)
    assert set(workloads(objects)) == set(SERVICES)
    assert {key: openings(found) for key, found in workloads(objects).items()} == {
        key: [] for key in SERVICES
    }
    labels = next(one for one in objects if one["kind"] == "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_an_open_pod_is_seen() -> None:
    workload = copy.deepcopy(workloads(render("local"))["actor"])
    pod(workload)["hostNetwork"] = True
    pod(workload)["volumes"].append({"name": "root", "hostPath": {"path": "/"}})
    pod(workload)["initContainers"] = [{"name": "sneak", "image": "sneak"}]
    del pod(workload)["securityContext"]["seccompProfile"]
    assert openings(workload) == ["hostNetwork", "seccompProfile", "hostPath", "container sneak"]


@every_combination
def test_there_is_time_to_drain(name: str) -> None:
    for workload in workloads(combination(name)).values():
        assert pod(workload)["terminationGracePeriodSeconds"] > DRAIN_S


@every_combination
def test_every_container_says_what_it_needs(name: str) -> None:
    for workload in workloads(combination(name)).values():
        for container in containers(workload):
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert {"cpu", "memory"} <= set(container["resources"]["limits"])
            assert container["image"].rpartition(":")[0]


@every_combination
def test_the_configuration_loads(name: str, tmp_path: Path) -> None:
    objects = combination(name)
    file = tmp_path / "run.yaml"
    file.write_text(run_yaml(objects))
    for workload in workloads(objects).values():
        environ = environment(workload)
        config = load_config(file, environ=environ)
        check_trainable(config)
        check_shareable(config, int(environ.get("NNODES", 1)))
        mounts = {mount["mountPath"] for mount in the_container(workload)["volumeMounts"]}
        paths = [
            value for key, value in environ.items() if key.startswith("SHOAL__") and value.startswith("/")
        ]
        assert paths
        # Each in a directory that is mounted.
        assert [path for path in paths if str(Path(path).parent) not in mounts] == []


def test_a_wrong_variable_is_seen() -> None:
    environ = environment(workloads(render("local"))["replay"])
    with pytest.raises(ConfigError, match="dirr"):
        load_config(environ=environ | {"SHOAL__REPLAY__DIRR": "/data"})


@pytest.mark.parametrize("path", sorted(K8S.glob("overlays/*/run.yaml")), ids=lambda path: path.parent.name)
def test_runs_are_copies_of_the_preset(path: Path) -> None:
    assert load_config(path, environ={}) == load_config(ROOT / "configs/cartpole.yaml", environ={})


def test_actors_keep_nothing() -> None:
    workload = named(render("gke-spot"), "Deployment", "actor")
    mounts = {mount["mountPath"] for mount in the_container(workload)["volumeMounts"]}
    assert mounts == {"/tmp", "/etc/shoal", "/run/shoal"}
    assert not any("persistentVolumeClaim" in volume for volume in pod(workload)["volumes"])
