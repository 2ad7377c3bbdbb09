"""Requests into one pass and back: every row gets its own answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from services.inference.batcher import Request
from services.inference.hot_swap import LoadedPolicy
from services.inference.metrics import InferenceMetrics
from services.inference.runner import Runner
from services.inference.session import Session
from shoal.clients.inference import ActReply
from shoal.config.network import PolicySection
from shoal.policy.network import ActorCritic, Choice, build_policy
from shoal.records import ArraySpec, DiscreteAction, EnvSpec

SPEC = EnvSpec(
    "Rows-v0",
    (
        ArraySpec("observation.code", "int64", (), num_categories=50),
        ArraySpec("observation.x", "uint8", (2, 2)),
    ),
    DiscreteAction(50),
)


def copycat() -> LoadedPolicy:
    """Its most likely action is the code that it sees."""
    policy = build_policy(PolicySection(hidden_sizes=()), SPEC)
    assert isinstance(policy, ActorCritic)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        policy.policy_head.weight[:, :50] = 100.0 * torch.eye(50)
    return LoadedPolicy(5, policy)


def request(*codes: int, greedy: bool = True) -> Request:
    num_rows = len(codes)
    observation = {
        "observation.code": np.array(codes, np.int64),
        "observation.x": np.zeros((num_rows, 2, 2), np.uint8),
    }
    choice = Choice(greedy=torch.ones(num_rows, dtype=torch.bool) if greedy else None)
    return Request(Session(SPEC, num_rows, choice), observation, np.zeros(num_rows, np.bool_), False, 0.0)


def runner(max_batch: int = 64) -> Runner:
    return Runner(SPEC.observation, max_batch, torch.device("cpu"), InferenceMetrics(CollectorRegistry()))


def actions(replies: list[ActReply]) -> list[list[int]]:
    return [reply.outputs["action"].tolist() for reply in replies]


def test_each_request_gets_its_own_rows() -> None:
    replies = runner().run([request(1, 2, 3), request(9), request(4, 4)], copycat())
    assert actions(replies) == [[1, 2, 3], [9], [4, 4]]
    assert [reply.outputs["log_prob"].shape for reply in replies] == [(3,), (1,), (2,)]
    assert {reply.policy_version for reply in replies} == {5}


def test_outputs_are_views_of_one_array_per_output() -> None:
    first, second = runner().run([request(1, 2), request(3)], copycat())
    assert first.outputs["action"].base is not None
    assert first.outputs["action"].base is second.outputs["action"].base


def test_the_next_batch_does_not_change_the_last_ones_outputs() -> None:
    run, policy = runner(), copycat()
    before = run.run([request(1, 2), request(3)], policy)
    run.run([request(7, 8), request(9)], policy)
    assert actions(before) == [[1, 2], [3]]


@pytest.mark.parametrize("sizes", [(1, 2, 3, 5, 33, 64), (64, 1, 17)])
def test_buffers_grow_with_the_batches(sizes: tuple[int, ...]) -> None:
    run, policy = runner(64), copycat()
    for size in sizes:
        codes = [code % 50 for code in range(size)]
        assert actions(run.run([request(*codes)], policy)) == [codes]


def test_buffers_are_not_larger_than_the_batches_need() -> None:
    run = runner(1 << 20)
    run.run([request(1, 2, 3, 4, 5)], copycat())
    assert run.num_buffered_rows == 8
    run = runner(max_batch=6)
    run.run([request(1, 2, 3, 4, 5)], copycat())
    assert run.num_buffered_rows == 6


def test_greedy_is_per_request() -> None:
    loaded = copycat()
    assert isinstance(loaded.policy, ActorCritic)
    with torch.no_grad():
        loaded.policy.policy_head.weight[:, :50] *= 0.01  # nearly uniform, with the same mode
    codes = list(range(40))
    greedy, sampled = actions(runner(128).run([request(*codes), request(*codes, greedy=False)], loaded))
    assert greedy == codes
    assert sampled != codes


def test_of_untrained_weights_actions_are_random_but_for_the_greedy() -> None:
    """50 actions: that a copycat's 64 rows are right by chance in more than 10 does not happen."""
    loaded = replace(copycat(), untrained=True)
    codes = [code % 50 for code in range(64)]
    requests = [request(*codes), request(*codes, greedy=False)]
    greedy, explored = actions(runner(128).run(requests, loaded))
    assert greedy == codes
    assert sum(a == b for a, b in zip(explored, codes, strict=True)) <= 10
    assert len(set(explored)) > 20
    (alone,) = actions(runner(128).run([request(*codes, greedy=False)], loaded))
    assert sum(a == b for a, b in zip(alone, codes, strict=True)) <= 10
