"""Overlays for spot nodes: actors there and only there, gone in time, back soon; data is elsewhere."""

from __future__ import annotations

import pytest

from shoal.config import Config
from shoal.rpc.watchdog import LAST_WORDS_S, MARGIN_S
from tests.deploy.k8s_render import K8S, Object, named, needs_kubectl, of_kind, pod, render, workloads

pytestmark = needs_kubectl

# The label of a cloud's spot nodes, which is also the key of their taint, and the notice that it gives (s).
SPOT = {
    "gke-spot": ("cloud.google.com/gke-spot", "true", 15),
    "eks-spot": ("eks.amazonaws.com/capacityType", "SPOT", 120),
    "aks-spot": ("kubernetes.azure.com/scalesetpriority", "spot", 30),
}
clouds = pytest.mark.parametrize("overlay", SPOT)


def lands_on(spec: Object, labels: dict[str, str], taints: list[tuple[str, str]]) -> bool:
    """Whether the scheduler may put the pod on a node with these labels and NoSchedule taints."""
    node = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = node.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}])

    def fits(expression: Object) -> bool:
        is_in = labels.get(expression["key"]) in expression["values"]
        return {"In": is_in, "NotIn": not is_in}[expression["operator"]]

    tolerated = {
        (toleration["key"], toleration.get("value", ""))
        for toleration in spec.get("tolerations", ())
        if toleration["effect"] == "NoSchedule"
    }
    is_chosen = any(all(map(fits, term.get("matchExpressions", ()))) for term in terms)
    return is_chosen and all(taint in tolerated for taint in taints)


@clouds
def test_who_lands_where(overlay: str) -> None:
    key, value, _ = SPOT[overlay]
    found = {service: pod(workload) for service, workload in workloads(render(overlay)).items()}
    for service, spec in found.items():
        is_actor = service == "actor"
        assert lands_on(spec, {key: value}, [(key, value)]) is is_actor
        assert lands_on(spec, {key: value}, []) is is_actor
        assert lands_on(spec, {}, []) is not is_actor


def test_without_affinity_they_land_anywhere() -> None:
    """The control: the same question, of an overlay that knows no spot nodes."""
    spec = pod(workloads(render("local"))["replay"])
    assert lands_on(spec, {"cloud.google.com/gke-spot": "true"}, [])


@clouds
def test_actors_end_within_the_notice(overlay: str) -> None:
    _, _, notice_s = SPOT[overlay]
    grace_s = pod(workloads(render(overlay))["actor"])["terminationGracePeriodSeconds"]
    assert Config().rpc.drain_s + MARGIN_S + LAST_WORDS_S < grace_s <= notice_s


@clouds
def test_actors_of_a_lost_node_are_replaced_soon(overlay: str) -> None:
    waits = {
        toleration["key"]: toleration["tolerationSeconds"]
        for toleration in pod(workloads(render(overlay))["actor"])["tolerations"]
        if toleration["effect"] == "NoExecute"
    }
    assert set(waits) == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert max(waits.values()) <= 30


@clouds
def test_actors_are_spread_and_go_first(overlay: str) -> None:
    objects = render(overlay)
    keys = {
        constraint["topologyKey"]
        for constraint in pod(workloads(objects)["actor"])["topologySpreadConstraints"]
    }
    assert keys == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    values = {
        service: named(objects, "PriorityClass", pod(workload)["priorityClassName"])["value"]
        for service, workload in workloads(objects).items()
    }
    assert values["actor"] < values["inference"] < values["replay"] == values["learner"]
    assert named(objects, "PriorityClass", "shoal-actor")["preemptionPolicy"] == "Never"


@clouds
def test_data_is_on_volumes_that_stay(overlay: str) -> None:
    objects = render(overlay)
    assert set(workloads(of_kind(objects, "StatefulSet"))) == {"replay", "learner"}
    for one in of_kind(objects, "StatefulSet"):
        (claim,) = one["spec"]["volumeClaimTemplates"]
        assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
        assert claim["spec"]["storageClassName"]
        assert set(one["spec"]["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
        # Shards do not wait for each other, and learners would wait for ever.
        assert one["spec"]["podManagementPolicy"] == "Parallel"


def test_every_budget_lets_a_node_be_drained() -> None:
    budgets = of_kind(render("gke-spot"), "PodDisruptionBudget")
    assert len(budgets) == 4
    for one in budgets:
        assert one["spec"]["maxUnavailable"] not in (0, "0%")
        assert one["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_karpenter_is_mentioned() -> None:
    assert "karpenter.sh/capacity-type" in (K8S / "components/spot-eks/kustomization.yaml").read_text()
