"""What operators are told: certificates carry the names that are dialled, scrapes the labels of the rules."""

from __future__ import annotations

import pytest

from shoal.cli.plan import PEERS
from shoal.config import load_config
from shoal.rpc.addresses import parse_endpoint
from tests.deploy.k8s_render import Object, combination, environment, named, needs_kubectl, pod, workloads

pytestmark = needs_kubectl

MTLS = "eks-spot, watched, scaled by keda, mtls"


def dialled(workload: Object, peer: str) -> set[str]:
    """Host names under which a pod dials the service `peer`."""
    found = getattr(load_config(environ=environment(workload)).addresses, peer)
    return {parse_endpoint(text).host for text in ((found,) if isinstance(found, str) else found)}


def test_certificates_carry_the_names_that_are_dialled() -> None:
    objects = combination(MTLS)
    checked = set()
    for service, workload in workloads(objects).items():
        for peer in PEERS[service]:
            certificate = named(objects, "Certificate", peer)["spec"]
            assert dialled(workload, peer) <= set(certificate["dnsNames"])
            assert "server auth" in certificate["usages"]
            assert "client auth" in named(objects, "Certificate", service)["spec"]["usages"]
            checked.add((service, peer))
    assert len(checked) == 4


def test_certificates_are_of_one_authority() -> None:
    objects = combination(MTLS)
    for service in PEERS:
        issuer = named(objects, "Certificate", service)["spec"]["issuerRef"]["name"]
        secret = named(objects, "Issuer", issuer)["spec"]["ca"]["secretName"]
        assert named(objects, "Certificate", "shoal-ca")["spec"]["secretName"] == secret
    assert named(objects, "Certificate", "shoal-ca")["spec"]["isCA"]


def test_every_pod_reads_its_own_certificate() -> None:
    objects = combination(MTLS)
    for service, workload in workloads(objects).items():
        (volume,) = (volume for volume in pod(workload)["volumes"] if volume["name"] == "tls")
        assert volume["secret"]["secretName"] == named(objects, "Certificate", service)["spec"]["secretName"]
        tls = load_config(environ=environment(workload)).security.tls
        assert list(map(str, (tls.cert, tls.key, tls.ca))) == [
            f"/run/shoal-tls/{name}" for name in ("tls.crt", "tls.key", "ca.crt")
        ]


def test_names_without_the_chief_are_seen() -> None:
    """What a certificate for `learner` alone would miss."""
    inference = workloads(combination(MTLS))["inference"]
    assert not dialled(inference, "learner") <= {"learner"}


@pytest.mark.parametrize("name", [MTLS, "local, shared gpu"])
def test_scrapes_have_the_labels_of_the_rules(name: str) -> None:
    objects = combination(name)
    spec = named(objects, "PodMonitor", "shoal")["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    labels = {entry["targetLabel"]: entry["sourceLabels"] for entry in endpoint["relabelings"]}
    assert labels == {
        "job": ["__meta_kubernetes_pod_label_app_kubernetes_io_component"],
        "run": ["__meta_kubernetes_namespace"],
    }
    for service, workload in workloads(objects).items():
        found = workload["spec"]["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= found.items()
        assert found["app.kubernetes.io/component"] == service
        assert endpoint["port"] in {port["name"] for port in pod(workload)["containers"][0]["ports"]}


def test_rules_come_once() -> None:
    """Of two runs the second has no rules and dashboards of its own: they would count and alert twice."""
    kinds = {one["kind"] for one in combination("local, shared gpu")}
    assert "PodMonitor" in kinds
    assert "PrometheusRule" not in kinds
    assert "PrometheusRule" in {one["kind"] for one in combination(MTLS)}
