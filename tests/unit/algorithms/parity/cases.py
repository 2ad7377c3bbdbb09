"""The fixed inputs, and what the slow versions make of them. Plain Python: neither torch nor NumPy.

`python -m tests.unit.algorithms.parity.cases` writes the results into constants.json, which test_parity.py
compares with the slow versions and with shoal.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.algorithms.parity import (
    slow_adam,
    slow_continuous,
    slow_per,
    slow_policy_losses,
    slow_q_losses,
)
from tests.unit.algorithms.parity.slow_targets import Stream, gae, n_step, vtrace

CONSTANTS = Path(__file__).with_name("constants.json")

# Steps by environment: `T` terminated, `L` truncated, `r` the step that resets, which is no transition.
MARKS = ("r....L", ".Tr...", "..Lr.T", "......")
T, B, A, D = 6, 4, 3, 3
# The last environment's steps are too old: they count for nothing.
ON_POLICY_WEIGHTS, SAMPLED_WEIGHTS = (1.0, 1.0, 1.0, 0.0), (1.0, 0.25, 0.5, 0.0)
GAMMA, LAMBDA, N = 0.9, 0.8, 3
RHO_CLIP, C_CLIP = 1.5, 0.75
CLIP, VALUE_CLIP, VALUE_COST, ENTROPY_COST = 0.25, 0.375, 0.7, 0.05
HUBER, RESCALE, MAX_SHARE = 1.5, 0.01, 0.9
TEMPERATURE, TARGET_ENTROPY = 0.3, -2.0
NOISE_AFTER, NOISE = (0.5, -1.25, 2.0), (-0.75, 0.25, 1.5)
TARGET_NOISE, NOISE_CLIP = 0.25, 0.4
ALPHA, BETA = 0.6, 0.4
LEARNING_RATE, BETA_1, BETA_2, EPSILON = 0.01, 0.8, 0.95, 1e-3


class Numbers:
    """A linear congruential generator, with Knuth's constants; all numbers are exact in float32."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, end: int) -> int:
        self._state = (6364136223846793005 * self._state + 1442695040888963407) % 2**64
        return (self._state >> 33) % end

    def table(self, size: float, *shape: int) -> Any:
        """Nested lists of multiples of 1/256 in [-size, size]."""
        if not shape:
            return (self.below(2 * int(256 * size) + 1) - int(256 * size)) / 256
        return [self.table(size, *shape[1:]) for _ in range(shape[0])]


_numbers = Numbers(seed=7)
# Of the steps that reset nothing counts: their rewards are wild on purpose.
REWARD = [[100.0 if MARKS[b][t] == "r" else _numbers.table(2) for b in range(B)] for t in range(T)]
ACTION = [[_numbers.below(A) for _ in range(B)] for _ in range(T + 1)]
LOGITS, ACTING_LOGITS = _numbers.table(1, T + 1, B, A), _numbers.table(1, T + 1, B, A)
VALUE, MOVED_VALUE = _numbers.table(3, T + 1, B), _numbers.table(3, T + 1, B)
Q, TARGET_Q = _numbers.table(4, T + 1, B, A), _numbers.table(4, T + 1, B, A)
UNIT_ACTION = _numbers.table(1, T + 1, B, D)
ACTOR, TARGET_ACTOR = _numbers.table(1, T + 1, B, 2 * D), _numbers.table(1, T + 1, B, 2 * D)
# Of two critics: Q(s, a) = base(s) + sum of gain a - a^2 / 2.
CRITIC_BASE, TARGET_BASE = _numbers.table(2, 2, T + 1, B), _numbers.table(2, 2, T + 1, B)
CRITIC_GAIN, TARGET_GAIN = _numbers.table(2, 2, D), _numbers.table(2, 2, D)
PARAMETERS, GRADIENTS = _numbers.table(1, 5), _numbers.table(3, 6, 5)
# More than a node of the sum tree has children; an item of priority 0 is never sampled.
PRIORITIES = [0.0, *(abs(number) for number in _numbers.table(4, 19))]


def streams(weights: tuple[float, ...]) -> list[Stream]:
    return [
        Stream(
            reward=_column(REWARD, b),
            terminated=[mark == "T" for mark in MARKS[b]],
            truncated=[mark == "L" for mark in MARKS[b]],
            first=[False, *(mark == "r" for mark in MARKS[b])],
            weight=weights[b],
        )
        for b in range(B)
    ]


def log_prob(logits: Any, t: int, b: int) -> float:
    return slow_policy_losses.log_softmax(logits[t][b])[ACTION[t][b]]


def results() -> dict[str, Any]:
    """By `family.name`; tables are [T][B]."""
    found = {**_targets(), "adam.parameters": _adam(), **_replay()}
    for family, values in (*_policy_losses().items(), *_q_losses().items(), *_continuous().items()):
        found |= {f"{family}.{name}": value for name, value in values.items()}
    return found


def _targets() -> dict[str, Any]:
    found: dict[str, Any] = {}
    traces = [_trace(b) for b in range(B)]
    for name in ("vs", "advantage", "rho"):
        found[f"vtrace.{name}"] = _rows([getattr(trace, name) for trace in traces])
    all_streams = streams(ON_POLICY_WEIGHTS)
    advantages = [gae(stream, _column(VALUE, b), GAMMA, LAMBDA) for b, stream in enumerate(all_streams)]
    found["gae.advantage"] = _rows(advantages)
    returns = [
        [n_step(stream, t, N, GAMMA) if t in stream.transitions else (0.0, 0.0, t) for t in range(T)]
        for stream in all_streams
    ]
    for i, name in enumerate(("reward", "discount", "row")):
        found[f"n_step.{name}"] = _rows([[step[i] for step in steps] for steps in returns])
    return found


def _trace(b: int) -> Any:
    log_rho = [log_prob(LOGITS, t, b) - log_prob(ACTING_LOGITS, t, b) for t in range(T)]
    stream = streams(ON_POLICY_WEIGHTS)[b]
    return vtrace(stream, _column(VALUE, b), log_rho, GAMMA, RHO_CLIP, C_CLIP, LAMBDA)


def _policy_losses() -> dict[str, Any]:
    impala_steps, ppo_steps, rhos = [], [], []
    for b, stream in enumerate(streams(ON_POLICY_WEIGHTS)):
        trace, advantages = _trace(b), gae(stream, _column(VALUE, b), GAMMA, LAMBDA)
        for t in stream.transitions if stream.weight else ():
            log_pi, value = slow_policy_losses.log_softmax(LOGITS[t][b]), VALUE[t][b]
            old = {"old_log_prob": log_prob(ACTING_LOGITS, t, b), "old_value": value}
            step = slow_policy_losses.Step(
                log_pi, ACTION[t][b], value, target=trace.vs[t], advantage=trace.advantage[t], **old
            )
            impala_steps.append(step)
            ours = {"target": advantages[t] + value, "advantage": advantages[t]}
            ppo_steps.append(replace(step, value=MOVED_VALUE[t][b], **ours))
            rhos.append(trace.rho[t])
    impala = slow_policy_losses.impala(impala_steps, VALUE_COST, ENTROPY_COST)
    clipped = slow_policy_losses.normalised(ppo_steps)
    return {
        "impala": impala | {"mean_rho": sum(rhos) / len(rhos)},
        "ppo": slow_policy_losses.ppo(ppo_steps, CLIP, None, VALUE_COST, ENTROPY_COST),
        "ppo_normalised": slow_policy_losses.ppo(clipped, CLIP, VALUE_CLIP, VALUE_COST, ENTROPY_COST),
    }


def _q_losses() -> dict[str, Any]:
    rows = [
        slow_q_losses.QRows(stream, _column(ACTION, b), _column(Q, b), _column(TARGET_Q, b))
        for b, stream in enumerate(streams(SAMPLED_WEIGHTS))
    ]
    return {
        "apex": slow_q_losses.apex(rows, N, GAMMA, HUBER),
        "r2d2": slow_q_losses.r2d2(rows, N, GAMMA, RESCALE, MAX_SHARE),
    }


def _continuous() -> dict[str, Any]:
    sampled = slow_continuous.Sampled(streams(SAMPLED_WEIGHTS), UNIT_ACTION, N, GAMMA)
    critics = [_critic(CRITIC_BASE[i], CRITIC_GAIN[i]) for i in (0, 1)]
    targets = [_critic(TARGET_BASE[i], TARGET_GAIN[i]) for i in (0, 1)]
    noises: dict[str, Any] = {"noise_after": NOISE_AFTER, "noise": NOISE}
    soft: dict[str, Any] = {"temperature": TEMPERATURE, "target_entropy": TARGET_ENTROPY, **noises}
    smoothing: dict[str, Any] = {"noise": NOISE_AFTER, "target_noise": TARGET_NOISE, "noise_clip": NOISE_CLIP}

    def means_and_spreads(t: int, b: int) -> tuple[list[float], list[float]]:
        return ACTOR[t][b][:D], ACTOR[t][b][D:]

    def action(t: int, b: int) -> list[float]:
        return [math.tanh(raw) for raw in ACTOR[t][b][:D]]

    def target_action(t: int, b: int) -> list[float]:
        return [math.tanh(raw) for raw in TARGET_ACTOR[t][b][:D]]

    sac = slow_continuous.sac(sampled, means_and_spreads, critics, targets, **soft)
    td3 = slow_continuous.td3(sampled, action, target_action, critics, targets, **smoothing)
    return {"sac": sac, "td3": td3}


def _critic(base: Any, gain: list[float]) -> slow_continuous.Critic:
    return lambda t, b, action: base[t][b] + sum(g * a - a**2 / 2 for g, a in zip(gain, action, strict=True))


def _replay() -> dict[str, Any]:
    probabilities = slow_per.probabilities(PRIORITIES, ALPHA)
    sampled = [p for p in probabilities if p > 0]
    weights = slow_per.importance_weights(sampled, len(PRIORITIES), BETA)
    return {"per.probability": probabilities, "per.weight": weights}


def _adam() -> list[float]:
    return slow_adam.adam(PARAMETERS, GRADIENTS, LEARNING_RATE, BETA_1, BETA_2, EPSILON)


def _column(table: Any, b: int) -> list[Any]:
    return [row[b] for row in table]


def _rows(columns: list[list[Any]]) -> list[list[Any]]:
    return [list(row) for row in zip(*columns, strict=True)]


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.14g}")


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(_rounded(value))}" for name, value in results().items()]
    CONSTANTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
