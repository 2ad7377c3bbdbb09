"""NetworkPolicies allow the arrows of the architecture, names and metrics, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import product

import pytest

from shoal.cli.plan import PEERS
from shoal.config import Config
from shoal.rpc.addresses import parse_endpoint
from tests.deploy.k8s_network import Object, Peer, Port, allowed
from tests.deploy.k8s_render import (
    COMBINATIONS,
    NAMESPACE,
    combination,
    needs_kubectl,
    of_kind,
    render,
    workloads,
)

pytestmark = needs_kubectl

HEALTH, METRICS, STORE = 50050, 9464, 29500
GRPC = {
    "inference": parse_endpoint(Config().inference.listen.grpc).port,
    "replay": parse_endpoint(Config().replay.listen.grpc).port,
    "learner": parse_endpoint(Config().addresses.learner).port,
}
OUTSIDE = (
    Peer("prometheus", "monitoring", (("app.kubernetes.io/name", "prometheus"),)),
    Peer("dns", "kube-system", (("k8s-app", "kube-dns"),)),
    Peer("dns cache", ip="169.254.20.10"),
    # Those who have no business here, some with borrowed labels.
    Peer("grafana", "monitoring", (("app.kubernetes.io/name", "grafana"),)),
    Peer("another prometheus", "other", (("app.kubernetes.io/name", "prometheus"),)),
    Peer("an actor of another run", "other", (("app.kubernetes.io/component", "actor"),)),
    Peer("a pod beside", NAMESPACE, (("app", "other"),)),
    Peer("kubernetes api", ip="10.0.0.1"),
    Peer("metadata of the cloud", ip="169.254.169.254"),
    Peer("internet", ip="203.0.113.1"),
)
PORTS = tuple(Port(number) for number in (*GRPC.values(), HEALTH, METRICS, STORE, 53, 80, 443, 6443, 40000))
PORTS += (Port(53, "UDP"), Port(443, "UDP"))

Arrow = tuple[str, str, Port]


def peers(objects: Sequence[Object]) -> list[Peer]:
    pods = [
        Peer(service, NAMESPACE, tuple(workload["spec"]["template"]["metadata"]["labels"].items()))
        for service, workload in workloads(objects).items()
    ]
    return [*pods, *OUTSIDE]


def arrows(objects: Sequence[Object]) -> set[Arrow]:
    """All that is possible with a pod of the namespace at one of the ends.

    A service may have several replicas: it is asked whether they reach each other too.
    """
    policies, everyone = of_kind(objects, "NetworkPolicy"), peers(objects)
    return {
        (source.name, target.name, port)
        for source, target, port in product(everyone, everyone, PORTS)
        if NAMESPACE in (source.namespace, target.namespace) and allowed(policies, source, target, port)
    }


def expected(is_group: bool) -> set[Arrow]:
    found = {(service, peer, Port(GRPC[peer])) for service, dialled in PEERS.items() for peer in dialled}
    # The stranger in the namespace: names, and its own metrics if it has any.
    for inside in (*PEERS, "a pod beside"):
        found |= {(inside, dns, Port(53, kind)) for dns in ("dns", "dns cache") for kind in ("TCP", "UDP")}
        found.add(("prometheus", inside, Port(METRICS)))
    if is_group:
        found |= {("learner", "learner", port) for port in PORTS if port.protocol == "TCP"}
    return found


@pytest.mark.parametrize("name", COMBINATIONS)
def test_policies_are_the_arrows(name: str) -> None:
    assert arrows(combination(name)) == expected("learner-group" in COMBINATIONS[name][1])


@pytest.mark.parametrize("gone", ["dns", "metrics", *PEERS, "nothing dns", "nothing metrics"])
def test_a_missing_policy_is_seen(gone: str) -> None:
    """`nothing` alone would not be missed: two others choose every pod too. It stays for who edits those."""
    objects = [one for one in render("local") if one["metadata"]["name"] not in gone.split()]
    whole = [one for one in render("local") if one["kind"] != "NetworkPolicy"]
    policies = of_kind(objects, "NetworkPolicy")
    assert len(policies) == len(of_kind(render("local"), "NetworkPolicy")) - len(gone.split())
    assert arrows([*whole, *policies]) != expected(is_group=False)


def test_a_policy_that_is_too_wide_is_seen() -> None:
    for spoil in ("ports", "from"):
        objects = [copy.deepcopy(one) for one in render("local")]
        (replay,) = (one for one in of_kind(objects, "NetworkPolicy") if one["metadata"]["name"] == "replay")
        del replay["spec"]["ingress"][0][spoil]
        if spoil == "ports":
            # The dialling side is closed too: what is too wide on one side only does not show.
            (actor,) = (
                one for one in of_kind(objects, "NetworkPolicy") if one["metadata"]["name"] == "actor"
            )
            del actor["spec"]["egress"][1][spoil]
        assert arrows(objects) > expected(is_group=False)


def test_nobody_dials_an_actor() -> None:
    found = {source for source, target, _ in arrows(render("gke-spot")) if target == "actor"}
    assert found == {"prometheus"}
