"""Manifests as `kubectl kustomize` renders them, for the tests of deploy/k8s.

Runs kubectl without a cluster. A combination is an overlay with components on top, as a user's own overlay
has them.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "deploy/k8s"
OVERLAYS = ("local", "gke-spot", "eks-spot", "aks-spot")
NAMESPACE = "shoal"
SERVICES = ("actor", "inference", "replay", "learner")
# What a user may put on top of an overlay. Every component is in one of them.
COMBINATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{overlay: (overlay, ()) for overlay in OVERLAYS},
    "gke-spot, watched, scaled by hpa": ("gke-spot", ("monitoring", "hpa", "gpu-inference")),
    "eks-spot, watched, scaled by keda, mtls": ("eks-spot", ("monitoring", "keda", "mtls")),
    "aks-spot, learners on gpus": ("aks-spot", ("learner-group", "gpu-learner", "mtls")),
    "local, shared gpu": ("local", ("gpu-shared", "pod-monitor")),
}

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed: it renders the manifests"
)


def kustomize(directory: Path) -> list[Object]:
    """All objects of a directory. Raises CalledProcessError with what kubectl says."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(directory)], capture_output=True, text=True, check=True
    )
    return [found for found in yaml.safe_load_all(done.stdout) if found]


@functools.cache
def render(overlay: str, components: Sequence[str] = ()) -> tuple[Object, ...]:
    """Do not change what comes back: it is shared. `copy.deepcopy` it first."""
    if not components:
        return tuple(kustomize(K8S / "overlays" / overlay))
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made).resolve()
        here = os.path.relpath(K8S, directory)
        own = {
            # Without it, what components bring would be in no namespace.
            "namespace": NAMESPACE,
            "resources": [f"{here}/overlays/{overlay}"],
            "components": [f"{here}/components/{name}" for name in components],
        }
        (directory / "kustomization.yaml").write_text(yaml.safe_dump(own))
        return tuple(kustomize(directory))


def combination(name: str) -> tuple[Object, ...]:
    return render(*COMBINATIONS[name])


def of_kind(objects: Sequence[Object], *kinds: str) -> list[Object]:
    return [found for found in objects if found["kind"] in kinds]


def named(objects: Sequence[Object], kind: str, name: str) -> Object:
    (found,) = (found for found in of_kind(objects, kind) if found["metadata"]["name"] == name)
    return found


def workloads(objects: Sequence[Object]) -> dict[str, Object]:
    """Deployments and stateful sets by name, which is the service's."""
    return {found["metadata"]["name"]: found for found in of_kind(objects, "Deployment", "StatefulSet")}


def pod(workload: Object) -> Object:
    found: Object = workload["spec"]["template"]["spec"]
    return found


def containers(workload: Object) -> Iterator[Object]:
    """Init containers too."""
    spec = pod(workload)
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


def the_container(workload: Object) -> Object:
    (found,) = pod(workload)["containers"]
    return dict(found)


def environment(workload: Object, pod_index: int = 0) -> dict[str, str]:
    """What the kubelet gives the container: with the references resolved."""
    container = the_container(workload)
    values = {}
    for variable in container.get("env", ()):
        source = variable.get("valueFrom", {})
        if "resourceFieldRef" in source:
            section, _, resource = source["resourceFieldRef"]["resource"].partition(".")
            values[variable["name"]] = str(container["resources"][section][resource])
        elif "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"
            values[variable["name"]] = str(pod_index)
        else:
            values[variable["name"]] = variable["value"]
    return values


def run_yaml(objects: Sequence[Object]) -> str:
    """The run's configuration, of the config map that the pods mount."""
    (name,) = {
        volume["configMap"]["name"]
        for workload in workloads(objects).values()
        for volume in pod(workload)["volumes"]
        if "configMap" in volume
    }
    return str(named(objects, "ConfigMap", name)["data"]["run.yaml"])
