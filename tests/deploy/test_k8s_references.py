"""What objects name exists: selectors, accounts, classes, volumes; and no secret is among them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import pytest

from tests.deploy.k8s_render import (
    COMBINATIONS,
    ROOT,
    Object,
    combination,
    needs_kubectl,
    of_kind,
    pod,
    render,
    the_container,
    workloads,
)

pytestmark = needs_kubectl
every_combination = pytest.mark.parametrize("name", COMBINATIONS)

Reference = tuple[str, str]
# Made by the user, with a command that the documentation shows.
BY_HAND: set[Reference] = {("Secret", "shoal-token")}
# Made by the cloud: its own storage classes.
BY_CLOUD: set[Reference] = {("StorageClass", "standard-rwo"), ("StorageClass", "managed-csi")}


def references(workload: Object) -> Iterator[Reference]:
    spec = pod(workload)
    yield "ServiceAccount", spec["serviceAccountName"]
    yield "PriorityClass", spec["priorityClassName"]
    for volume in spec["volumes"]:
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
            # Readable for the group of the pod, and for nobody else.
            assert volume["secret"]["defaultMode"] == 0o440
    for claim in workload["spec"].get("volumeClaimTemplates", ()):
        if "storageClassName" in claim["spec"]:
            yield "StorageClass", claim["spec"]["storageClassName"]
    if "serviceName" in workload["spec"]:
        yield "Service", workload["spec"]["serviceName"]


def unmounted(workload: Object) -> set[str]:
    """Mounts without a volume, and volumes that nobody mounts."""
    volumes = {volume["name"] for volume in pod(workload)["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())}
    return volumes ^ {mount["name"] for mount in the_container(workload)["volumeMounts"]}


def missing(objects: Sequence[Object]) -> set[Reference]:
    there = {(one["kind"], one["metadata"]["name"]) for one in objects}
    # cert-manager writes them.
    there |= {("Secret", one["spec"]["secretName"]) for one in of_kind(objects, "Certificate")}
    named = {reference for workload in workloads(objects).values() for reference in references(workload)}
    return named - there - BY_HAND - BY_CLOUD


@every_combination
def test_what_pods_name_exists(name: str) -> None:
    assert missing(combination(name)) == set()
    for workload in workloads(combination(name)).values():
        assert unmounted(workload) == set()


def test_missing_things_are_seen() -> None:
    objects = [copy.deepcopy(one) for one in render("local")]
    pod(workloads(objects)["actor"])["serviceAccountName"] = "nobody"
    pod(workloads(objects)["actor"])["volumes"].append({"name": "spare", "emptyDir": {}})
    assert missing(objects) == {("ServiceAccount", "nobody")}
    assert unmounted(workloads(objects)["actor"]) == {"spare"}


def test_what_is_made_by_hand_is_documented() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    assert "kubectl -n shoal create secret generic shoal-token --from-file=token=" in text


@every_combination
def test_no_secret_is_rendered(name: str) -> None:
    assert of_kind(combination(name), "Secret") == []


@every_combination
def test_selectors_find_their_pods_and_no_others(name: str) -> None:
    objects = combination(name)
    pods = {
        service: one["spec"]["template"]["metadata"]["labels"] for service, one in workloads(objects).items()
    }

    def found(selector: Object) -> list[str]:
        return [service for service, labels in pods.items() if selector.items() <= labels.items()]

    for kind in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
        for one in of_kind(objects, kind):
            assert found(one["spec"]["selector"]["matchLabels"]) == [one["metadata"]["name"]]
    for one in of_kind(objects, "Service"):
        assert found(one["spec"]["selector"]) == [one["metadata"]["name"]]
    for workload in workloads(objects).values():
        for constraint in pod(workload).get("topologySpreadConstraints", ()):
            assert found(constraint["labelSelector"]["matchLabels"]) == [workload["metadata"]["name"]]


@every_combination
def test_services_are_headless_and_name_the_port_that_clients_dial(name: str) -> None:
    objects = combination(name)
    for service in of_kind(objects, "Service"):
        assert service["spec"]["clusterIP"] == "None"
        (port,) = service["spec"]["ports"]
        container = the_container(workloads(objects)[service["metadata"]["name"]])
        assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]
        # Learners look for each other before they are ready; a shard that reads its files must not be found.
        is_early = service["spec"].get("publishNotReadyAddresses", False)
        assert is_early == (service["metadata"]["name"] == "learner")
