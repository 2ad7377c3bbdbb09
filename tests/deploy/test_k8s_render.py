"""Every overlay and component renders and is what the Kubernetes API takes."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.k8s_render import (
    COMBINATIONS,
    K8S,
    NAMESPACE,
    OVERLAYS,
    Object,
    combination,
    kustomize,
    named,
    needs_kubectl,
    render,
)

pytestmark = needs_kubectl

CLUSTER_WIDE = {"Namespace", "PriorityClass", "StorageClass"}
VERSIONS = ("1.36", "1.37")
# Kinds of operators, which the schemas of Kubernetes know nothing of: the fields that they cannot do without.
REQUIRED: dict[tuple[str, str], tuple[str, ...]] = {
    ("keda.sh/v1alpha1", "ScaledObject"): ("scaleTargetRef.name", "triggers"),
    ("monitoring.coreos.com/v1", "PodMonitor"): ("selector", "podMetricsEndpoints"),
    ("monitoring.coreos.com/v1", "PrometheusRule"): ("groups",),
    ("cert-manager.io/v1", "Certificate"): ("secretName", "issuerRef.name", "privateKey.algorithm"),
    ("cert-manager.io/v1", "Issuer"): (),
}


def problems(found: Object, version: str) -> list[str]:
    kind = (found["apiVersion"], found["kind"])
    if kind in REQUIRED:
        return [path for path in REQUIRED[kind] if value(found["spec"], path) in (None, "", [], {})]
    message = schema_problem(json.dumps(found), version)
    return [message] if message else []


@functools.cache
def schema_problem(text: str, version: str) -> str:
    """Most objects are the same in all combinations, and a look takes a tenth of a second."""
    try:
        kubernetes_validate.validate(json.loads(text), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error.message)
    return ""


def value(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


@pytest.mark.parametrize("name", COMBINATIONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_fits_the_schemas(name: str, version: str) -> None:
    found = {
        f"{one['kind']} {one['metadata']['name']}": wrong
        for one in combination(name)
        if (wrong := problems(one, version))
    }
    assert found == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_does_not_fit_is_seen(version: str) -> None:
    broken = copy.deepcopy(named(render("local"), "Deployment", "actor"))
    broken["spec"]["template"]["spec"]["container"] = []
    assert problems(broken, version)
    scaled = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "spec": {"scaleTargetRef": {}}}
    assert problems(scaled, version) == ["scaleTargetRef.name", "triggers"]


def test_all_overlays_and_components_are_tested() -> None:
    used = {component for _, components in COMBINATIONS.values() for component in components}
    # Overlays bring these themselves.
    used |= {f"spot-{overlay.removesuffix('-spot')}" for overlay in OVERLAYS if overlay.endswith("-spot")}
    assert {path.name for path in (K8S / "components").iterdir()} == used
    assert {path.name for path in (K8S / "overlays").iterdir()} == set(OVERLAYS)


def test_two_autoscalers_do_not_render() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        render("local", ("hpa", "keda"))


@pytest.mark.parametrize("name", COMBINATIONS)
def test_everything_is_in_one_namespace(name: str) -> None:
    objects = combination(name)
    assert [one["metadata"]["name"] for one in objects if one["kind"] == "Namespace"] == [NAMESPACE]
    inside = [one for one in objects if one["kind"] not in CLUSTER_WIDE]
    assert {one["metadata"].get("namespace") for one in inside} == {NAMESPACE}


def test_the_base_names_no_namespace() -> None:
    objects = [one for one in kustomize(K8S / "base") if one["kind"] != "Namespace"]
    assert {one["metadata"].get("namespace") for one in objects} == {None}
