"""Who may reach whom, by NetworkPolicies alone: an evaluator of what Kubernetes says of them.

A connection needs leave on both sides: of the policies that choose the dialling pod for egress and of those
that choose the listening one for ingress. A side that no policy chooses is open. Named ports and `except` are
not used, and are refused.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A pod, or with `ip` a machine outside of the cluster."""

    name: str
    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    ip: str = ""


@dataclass(frozen=True)
class Port:
    number: int
    protocol: str = "TCP"


def allowed(policies: Sequence[Object], source: Peer, target: Peer, port: Port) -> bool:
    return _side(policies, "Egress", source, target, port) and _side(
        policies, "Ingress", target, source, port
    )


def _side(policies: Sequence[Object], direction: str, own: Peer, other: Peer, port: Port) -> bool:
    chosen = [policy for policy in policies if _chooses(policy, direction, own)]
    key, side = direction.lower(), "to" if direction == "Egress" else "from"
    return not chosen or any(
        _peers(rule.get(side), policy["metadata"]["namespace"], other) and _ports(rule.get("ports"), port)
        for policy in chosen
        for rule in policy["spec"].get(key, ())
    )


def _chooses(policy: Object, direction: str, peer: Peer) -> bool:
    spec = policy["spec"]
    return (
        not peer.ip
        and policy["metadata"]["namespace"] == peer.namespace
        and direction in spec["policyTypes"]
        and _matches(spec["podSelector"], dict(peer.labels))
    )


def _peers(peers: Sequence[Object] | None, namespace: str, other: Peer) -> bool:
    """No list, or an empty one, is everybody."""
    return not peers or any(_is_peer(peer, namespace, other) for peer in peers)


def _is_peer(peer: Object, namespace: str, other: Peer) -> bool:
    if "ipBlock" in peer:
        assert set(peer["ipBlock"]) == {"cidr"}
        return bool(other.ip) and ipaddress.ip_address(other.ip) in ipaddress.ip_network(
            peer["ipBlock"]["cidr"]
        )
    if other.ip:
        return False
    if "namespaceSelector" in peer:
        # Every namespace has this label, by Kubernetes itself.
        inside = _matches(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
    else:
        inside = other.namespace == namespace
    return inside and _matches(peer.get("podSelector", {}), dict(other.labels))


def _ports(ports: Sequence[Object] | None, port: Port) -> bool:
    return not ports or any(_is_port(entry, port) for entry in ports)


def _is_port(entry: Object, port: Port) -> bool:
    if entry.get("protocol", "TCP") != port.protocol:
        return False
    first = entry.get("port", port.number)
    assert isinstance(first, int), "ports by name are not evaluated"
    return bool(first <= port.number <= entry.get("endPort", first))


def _matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """An empty selector is everybody."""
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items() and all(
        _fits(expression, labels) for expression in selector.get("matchExpressions", ())
    )


def _fits(expression: Object, labels: Mapping[str, str]) -> bool:
    key, operator = expression["key"], expression["operator"]
    is_in = labels.get(key) in expression.get("values", ())
    return {
        "In": key in labels and is_in,
        "NotIn": not is_in,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }[operator]
