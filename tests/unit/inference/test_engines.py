"""Several policies behind one server, and the bound on what it takes."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry
from safetensors.torch import save

from services.inference.engine import Engine
from services.inference.engines import Engines
from services.inference.metrics import InferenceMetrics
from services.inference.seats import Seats
from shoal.clients.inference import ActHello
from shoal.config.network import PolicySection
from shoal.config.tree import InferenceSection
from shoal.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError, UserError
from shoal.policy.network import build_policy
from shoal.records import ArraySpec, BoxAction, DiscreteAction, EnvSpec, Life, WeightsSnapshot
from tests.unit.inference.tracer import POLICY, SPEC, assert_consistent, running_engine, snapshot, step

CODES = EnvSpec("Codes-v0", (ArraySpec("observation", "float32", (2,)),), DiscreteAction(4))


def hello(policy: str, spec: EnvSpec = SPEC, num_envs: int = 3, **more: object) -> ActHello:
    return ActHello(Life("actor-0", "life"), spec, num_envs, policy=policy, **more)  # type: ignore[arg-type]


def test_each_stream_is_answered_by_the_policy_that_it_names() -> None:
    async def scenario() -> None:
        metrics, seats = InferenceMetrics(CollectorRegistry()), Seats(100)
        section = InferenceSection(id="replica")
        red, blue = (
            Engine(section, POLICY, torch.device("cpu"), metrics, name, seats) for name in ("red", "blue")
        )
        both = Engines([red, blue])
        both.start()
        try:
            connecting = [
                asyncio.ensure_future(both.connect(hello(name, greedy=True))) for name in ("red", "blue")
            ]
            for engine, version in ((red, 7), (blue, 11)):
                await engine.spec()
                await engine.install(snapshot(version))
            sessions = [(await each)[0] for each in connecting]
            assert sessions[0] != sessions[1]
            for _ in range(5):
                replies = await asyncio.gather(*(both.act(session, *step()) for session in sessions))
                assert [reply.policy_version for reply in replies] == [7, 11]
                for reply in replies:
                    assert_consistent(reply)
            with pytest.raises(FailedPreconditionError, match=r"'green'.*red, blue"):
                await both.connect(hello("green"))
            both.disconnect(sessions[0])
            with pytest.raises(UnavailableError):
                both.act(sessions[0], *step())
            assert_consistent(await both.act(sessions[1], *step()))
        finally:
            await both.close()

    asyncio.run(scenario())


def test_policies_of_one_server_may_have_different_environments() -> None:
    async def scenario() -> None:
        metrics, seats = InferenceMetrics(CollectorRegistry()), Seats(100)
        section = InferenceSection(id="replica")
        engines = [
            Engine(section, POLICY, torch.device("cpu"), metrics, name, seats) for name in ("red", "blue")
        ]
        both = Engines(engines)
        both.start()
        try:
            specs = {"red": SPEC, "blue": CODES}
            connecting = [asyncio.ensure_future(both.connect(hello(name, specs[name]))) for name in specs]
            await engines[0].spec()
            await engines[0].install(snapshot(0))
            assert await engines[1].spec() == CODES
            await engines[1].install(_fresh(CODES, POLICY))
            outputs = [(await each)[1].outputs[0] for each in connecting]
            assert outputs == [SPEC.action.array_spec(), CODES.action.array_spec()]
        finally:
            await both.close()

    asyncio.run(scenario())


def test_more_environments_than_there_is_room_for_are_sent_elsewhere_until_there_is() -> None:
    async def scenario() -> None:
        async with running_engine(InferenceSection(id="replica", max_envs=8)) as engine:
            first = asyncio.ensure_future(engine.connect(hello("policy", num_envs=5)))
            await engine.spec()
            await engine.install(snapshot(0))
            session, _ = await first
            with pytest.raises(UnavailableError, match=r"5 of 8 are taken .*inference.max_envs"):
                await engine.connect(hello("policy", num_envs=4))
            await engine.connect(hello("policy", num_envs=3))
            engine.disconnect(session)
            # Only once: a second end of the same stream gives nothing back.
            engine.disconnect(session)
            await engine.connect(hello("policy", num_envs=5))
            with pytest.raises(UnavailableError):
                await engine.connect(hello("policy", num_envs=1))

    asyncio.run(scenario())


def test_a_slow_actor_waits_for_one_pass_however_fast_the_others_are() -> None:
    """Batches hold two requests, six fast actors always have one waiting, the slow one comes now and then."""

    async def scenario() -> None:
        async with running_engine(InferenceSection(id="replica", max_batch=6)) as engine:
            connecting = [asyncio.ensure_future(engine.connect(hello("policy"))) for _ in range(7)]
            await engine.spec()
            await engine.install(snapshot(0))
            slow, *fast = [(await each)[0] for each in connecting]
            answered: Counter[int] = Counter()
            over = asyncio.Event()

            async def hurry(session: int) -> None:
                while not over.is_set():
                    await engine.act(session, *step())
                    answered[session] += 1

            hurrying = [asyncio.ensure_future(hurry(session)) for session in fast]
            overtaken = []
            for _ in range(30):
                before = dict(answered)
                await engine.act(slow, *step())
                overtaken.append(max(answered[session] - before.get(session, 0) for session in fast))
                await asyncio.sleep(0.001)
            over.set()
            await asyncio.gather(*hurrying)
            # In the queue before it: each other's one step; while it is computed: those of its own batch.
            assert max(overtaken) <= 2

    asyncio.run(scenario())


def test_epsilon_is_that_of_each_environment() -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            num = 4000
            epsilon = (0.0,) * (num // 2) + (1.0,) * (num // 2)
            acting = asyncio.ensure_future(engine.connect(hello("policy", CODES, num, epsilon=epsilon)))
            await engine.spec()
            await engine.install(_certain(CODES))
            session, _ = await acting
            observation = {"observation": np.ones((num, 2), np.float32)}
            reply = await engine.act(session, observation, np.zeros(num, np.bool_))
            actions = reply.outputs["action"]
            assert set(actions[: num // 2].tolist()) == {2}
            counts = np.bincount(actions[num // 2 :], minlength=4)
            assert (abs(counts - num / 8) < 5 * math.sqrt(num / 8)).all()
            np.testing.assert_allclose(reply.outputs["log_prob"][num // 2 :], math.log(0.25), atol=1e-5)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("spec", "more", "error"),
    [
        (CODES, {"epsilon": (0.1, 0.2)}, InvalidArgumentError),
        (CODES, {"epsilon": (0.1, 0.2, 1.5)}, InvalidArgumentError),
        (CODES, {"noise": -1.0}, InvalidArgumentError),
        (CODES, {"noise": 0.1}, UserError),
        (SPEC, {"epsilon": (0.1, 0.1, 0.1)}, UserError),
    ],
)
def test_exploration_that_does_not_fit_is_refused(
    spec: EnvSpec, more: dict[str, object], error: type[Exception]
) -> None:
    async def scenario() -> None:
        async with running_engine() as engine:
            connecting = asyncio.ensure_future(engine.connect(hello("policy", spec, **more)))
            await engine.spec()
            await engine.install(_fresh(spec, POLICY))
            with pytest.raises(error):
                await connecting

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["q", "soft_actor_critic", "deterministic"])
def test_every_kind_of_policy_is_served(kind: str) -> None:
    config = PolicySection.model_validate({"kind": kind, "hidden_sizes": (8,)})
    box = EnvSpec("Box-v0", CODES.observation, BoxAction((2,), (-1.0, 0.0), (1.0, 3.0)))
    spec = CODES if kind == "q" else box

    async def scenario() -> None:
        async with running_engine(policy=config) as engine:
            noise = 0.2 if kind == "deterministic" else 0.0
            connecting = asyncio.ensure_future(engine.connect(hello("policy", spec, 64, noise=noise)))
            await engine.spec()
            await engine.install(_fresh(spec, config))
            session, welcome = await connecting
            observation = {"observation": np.zeros((64, 2), np.float32)}
            reply = await engine.act(session, observation, np.ones(64, np.bool_))
            assert [spec.name for spec in welcome.outputs] == list(reply.outputs)
            action = reply.outputs["action"]
            if kind != "q":
                assert (action >= [-1, 0]).all()
                assert (action <= [1, 3]).all()
                assert np.unique(action).size > 64

    asyncio.run(scenario())


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_outputs_have_the_announced_types_at_any_precision(precision: str) -> None:
    async def scenario() -> None:
        section = InferenceSection.model_validate({"id": "replica", "precision": precision})
        async with running_engine(section) as engine:
            connecting = asyncio.ensure_future(engine.connect(hello("policy", CODES)))
            await engine.spec()
            await engine.install(_fresh(CODES, POLICY))
            session, welcome = await connecting
            reply = await engine.act(
                session, {"observation": np.ones((3, 2), np.float32)}, np.ones(3, np.bool_)
            )
            for spec in welcome.outputs:
                assert reply.outputs[spec.name].dtype == spec.dtype

    asyncio.run(scenario())


def _fresh(spec: EnvSpec, config: PolicySection) -> WeightsSnapshot:
    return WeightsSnapshot.of(1, save(dict(build_policy(config, spec).state_dict())))


def _certain(spec: EnvSpec) -> WeightsSnapshot:
    """Always takes action 2."""
    weights = dict(build_policy(POLICY, spec).state_dict())
    for tensor in weights.values():
        tensor.zero_()
    weights["policy_head.bias"][2] = 50.0
    return WeightsSnapshot.of(1, save(weights))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_network_answers_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as for any compiler; the one that torch takes by itself needs C++, which may not be here."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))

    async def replies(**settings: object) -> list[np.ndarray]:
        section = InferenceSection.model_validate({"id": "replica", **settings})
        async with running_engine(section) as engine:
            acting = asyncio.ensure_future(engine.connect(hello("policy", CODES, greedy=True)))
            await engine.spec()
            torch.manual_seed(3)
            await engine.install(_fresh(CODES, POLICY))
            session, _ = await acting
            observation = {"observation": np.array([[1, 2], [-3, 1], [0, -2]], np.float32)}
            reply = await engine.act(session, observation, np.ones(3, np.bool_))
            return [reply.outputs["action"], reply.outputs["log_prob"]]

    plain, compiled = asyncio.run(replies()), asyncio.run(replies(compile=True))
    np.testing.assert_array_equal(compiled[0], plain[0])
    np.testing.assert_allclose(compiled[1], plain[1], atol=1e-5)


def test_a_compiler_that_fails_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no C++ compiler\nand much more")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)

    async def scenario() -> None:
        async with running_engine(InferenceSection(id="replica", compile=True)) as engine:
            with pytest.raises(UserError, match=r"RuntimeError: no C\+\+ compiler\): .*inference.compile"):
                await engine.connect(hello("policy", CODES))

    asyncio.run(scenario())
