"""Autoscalers: they follow recording rules that exist, calmly, and do nothing where there is no value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from tests.deploy.k8s_render import (
    COMBINATIONS,
    K8S,
    NAMESPACE,
    Object,
    combination,
    needs_kubectl,
    of_kind,
    workloads,
)

pytestmark = needs_kubectl

HPA, KEDA = "gke-spot, watched, scaled by hpa", "eks-spot, watched, scaled by keda, mtls"
FOLLOWS = {"actor": "shoal:learner_starvation:ratio", "inference": "shoal:inference_queue_wait:seconds"}


def recorded(objects: Sequence[Object]) -> set[str]:
    """Recording rules that are rendered with the run."""
    return {
        rule["record"]
        for one in of_kind(objects, "PrometheusRule")
        for group in one["spec"]["groups"]
        for rule in group["rules"]
        if "record" in rule
    }


def adapter_rules() -> dict[str, dict[str, Any]]:
    """External metrics by name, as prometheus-adapter makes them."""
    values = yaml.safe_load((K8S / "components/hpa/prometheus-adapter-values.yaml").read_text())
    return {rule["name"]["as"]: rule for rule in values["rules"]["external"]}


def rules_in(query: str) -> set[str]:
    return set(re.findall(r"shoal:[a-z_]+:[a-z_]+", query))


def is_calm(behaviour: Object) -> bool:
    """Waits before it acts, and grows and shrinks in steps; smaller ones downwards."""
    up, down = behaviour["scaleUp"], behaviour["scaleDown"]
    return bool(
        up["stabilizationWindowSeconds"] >= 60
        and down["stabilizationWindowSeconds"] >= 600
        and all(policy["periodSeconds"] >= 60 for policy in (*up["policies"], *down["policies"]))
        and all(policy["value"] <= (10 if policy["type"] == "Percent" else 1) for policy in down["policies"])
    )


def test_hpa_follows_the_recording_rules() -> None:
    objects, rules = combination(HPA), adapter_rules()
    scalers = {
        one["spec"]["scaleTargetRef"]["name"]: one["spec"]
        for one in of_kind(objects, "HorizontalPodAutoscaler")
    }
    assert set(scalers) == set(FOLLOWS)
    for service, spec in scalers.items():
        (metric,) = spec["metrics"]
        assert metric["external"]["target"]["type"] == "Value"
        rule = rules[metric["external"]["metric"]["name"]]
        assert rules_in(rule["seriesQuery"]) == {FOLLOWS[service]} <= recorded(objects)
        # The value of a run is that of its namespace, where the autoscaler lives. NaN is no value.
        assert rule["resources"]["overrides"] == {"run": {"resource": "namespace"}}
        assert ">= 0" in rule["metricsQuery"]
        assert is_calm(spec["behavior"])
        assert 1 <= spec["minReplicas"] < spec["maxReplicas"]


def test_keda_follows_the_recording_rules() -> None:
    objects = combination(KEDA)
    scalers = {one["spec"]["scaleTargetRef"]["name"]: one["spec"] for one in of_kind(objects, "ScaledObject")}
    assert set(scalers) == set(FOLLOWS)
    for service, spec in scalers.items():
        (trigger,) = spec["triggers"]
        metadata = trigger["metadata"]
        assert (trigger["type"], trigger["metricType"]) == ("prometheus", "Value")
        assert rules_in(metadata["query"]) == {FOLLOWS[service]} <= recorded(objects)
        assert f'{{run="{NAMESPACE}"}} >= 0' in metadata["query"]
        # No value must not count as zero, which would take nearly everything away.
        assert metadata["ignoreNullValues"] == "false"
        assert spec["fallback"]["behavior"] == "currentReplicas"
        assert is_calm(spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"])
        assert 1 <= spec["minReplicaCount"] < spec["maxReplicaCount"]


def test_both_want_the_same() -> None:
    limits = {
        one["metadata"]["name"]: (one["spec"]["minReplicas"], one["spec"]["maxReplicas"])
        for one in of_kind(combination(HPA), "HorizontalPodAutoscaler")
    }
    assert limits == {
        one["metadata"]["name"]: (one["spec"]["minReplicaCount"], one["spec"]["maxReplicaCount"])
        for one in of_kind(combination(KEDA), "ScaledObject")
    }


@pytest.mark.parametrize("name", COMBINATIONS)
def test_scaled_deployments_have_no_number_of_their_own(name: str) -> None:
    objects = combination(name)
    scalers = of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    assert len({one["kind"] for one in scalers}) <= 1
    scaled = {one["spec"]["scaleTargetRef"]["name"] for one in scalers}
    without = {
        service for service, workload in workloads(objects).items() if "replicas" not in workload["spec"]
    }
    assert without == scaled


def test_hasty_behaviour_is_seen() -> None:
    hasty = {
        "scaleUp": {"stabilizationWindowSeconds": 0, "policies": []},
        "scaleDown": {"stabilizationWindowSeconds": 600, "policies": []},
    }
    assert not is_calm(hasty)
    assert rules_in("max(shoal:gone:ratio)") - {"shoal:learner_starvation:ratio"} == {"shoal:gone:ratio"}
