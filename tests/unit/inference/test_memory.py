"""What the server remembers of streams: the same as a learner's unroll computes, nothing of former lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry
from safetensors.torch import save

from services.inference.engine import Engine
from services.inference.metrics import InferenceMetrics
from shoal.clients.inference import ActHello
from shoal.config.network import PolicySection
from shoal.config.tree import InferenceSection
from shoal.policy.network import ActorCritic, build_policy
from shoal.records import ArraySpec, Columns, DiscreteAction, EnvSpec, Life, WeightsSnapshot

SPEC = EnvSpec(
    "Memory-v0",
    (ArraySpec("observation.x", "float32", (3,)), ArraySpec("observation.code", "uint8", (2,))),
    DiscreteAction(5),
)
T = 6
LSTM = PolicySection(hidden_sizes=(8,), recurrent="lstm", recurrent_size=7)
GRU = PolicySection(hidden_sizes=(8,), recurrent="gru", recurrent_size=7)
STACK = PolicySection(hidden_sizes=(8,), frame_stack=4)
BOTH = PolicySection(hidden_sizes=(8,), frame_stack=3, recurrent="lstm", recurrent_size=4)


def network(config: PolicySection) -> ActorCritic:
    torch.manual_seed(3)
    policy = build_policy(config, SPEC)
    assert isinstance(policy, ActorCritic)
    with torch.no_grad():
        # Outputs that differ from state to state: the first policy is nearly uniform.
        policy.policy_head.weight.mul_(100.0)
    return policy.eval()


@asynccontextmanager
async def serving(config: PolicySection, **settings: object) -> AsyncIterator[Engine]:
    section = InferenceSection.model_validate({"id": "replica", **settings})
    engine = Engine(section, config, torch.device("cpu"), InferenceMetrics(CollectorRegistry()))
    engine.start()
    waiting = asyncio.ensure_future(engine.connect(ActHello(Life("a", "b"), SPEC, 1)))
    await engine.spec()
    weights = {name: tensor.contiguous() for name, tensor in network(config).state_dict().items()}
    await engine.install(WeightsSnapshot.of(1, save(weights)))
    session, _ = await waiting
    engine.disconnect(session)
    try:
        yield engine
    finally:
        await engine.close()


@dataclass
class Stream:
    """A stream as an actor has it: random observations and episode ends, and all that came back."""

    engine: Engine
    num_envs: int
    seed: int
    session: int = -1
    rows: list[Columns] = field(default_factory=list)
    first: list[np.ndarray] = field(default_factory=list)
    log_probs: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    initial: list[Columns] = field(default_factory=list)

    async def open(self) -> Stream:
        hello = ActHello(Life(f"actor-{self.seed}", "life"), SPEC, self.num_envs)
        self.session, self.welcome = await self.engine.connect(hello)
        self.random = np.random.default_rng(self.seed)
        return self

    async def walk(self, num_steps: int) -> None:
        for _ in range(num_steps):
            t, num = len(self.rows), self.num_envs
            observation = {
                "observation.x": self.random.normal(size=(num, 3)).astype(np.float32),
                "observation.code": self.random.integers(0, 255, (num, 2)).astype(np.uint8),
            }
            first = self.random.random(num) < (1.0 if t == 0 else 0.2)
            reply = await self.engine.act(self.session, observation, first, t % T == 0)
            if t % T == 0:
                self.initial.append(reply.state)
            self.rows.append(observation)
            self.first.append(first)
            self.actions.append(reply.outputs["action"])
            self.log_probs.append(reply.outputs["log_prob"])
            # Streams get out of step, so that batches have all kinds of mixtures.
            if self.random.random() < 0.3:
                await asyncio.sleep(0.001)


def check_against_learner(policy: ActorCritic, stream: Stream) -> None:
    """Each unroll by itself: from the state that came back, and the frames that the actor has shown."""
    num_frames = policy.state and next(
        (spec.shape[0] for spec in policy.state if spec.name.startswith("frames.")), 0
    )
    for unroll, initial in enumerate(stream.initial):
        rows = slice(unroll * T, (unroll + 1) * T)
        observation = {
            name: torch.from_numpy(np.stack([row[name] for row in stream.rows[rows]]))
            for name in stream.rows[0]
        }
        first = torch.from_numpy(np.stack(stream.first[rows]))
        state = {name: torch.from_numpy(array) for name, array in initial.items()}
        for name in observation:
            if num_frames:
                state[f"frames.{name}"] = torch.from_numpy(frames(stream, name, rows.start, num_frames))
        with torch.no_grad():
            output = policy(observation, first, state)
            chosen = torch.from_numpy(np.stack(stream.actions[rows]))
            expected = policy.distribution(output.params).log_prob(chosen)
        np.testing.assert_allclose(np.stack(stream.log_probs[rows]), expected.numpy(), atol=1e-5)


def frames(stream: Stream, name: str, row: int, num_frames: int) -> np.ndarray:
    """The frames before a row, env by env, walking over the whole stream."""
    found = []
    for env in range(stream.num_envs):
        stack: list[np.ndarray] = []
        for t in range(row + 1):
            frame = stream.rows[t][name][env]
            begins = stream.first[t][env] or not stack
            stack = [frame] * (num_frames + 1) if begins else [*stack[1:], frame]
        found.append(stack[:-1])
    return np.array(found)


@pytest.mark.parametrize("config", [LSTM, GRU, STACK, BOTH], ids=["lstm", "gru", "stack", "both"])
def test_stepping_on_the_server_equals_an_unroll_on_the_learner(config: PolicySection) -> None:
    async def scenario() -> None:
        async with serving(config) as engine:
            streams = [await Stream(engine, num_envs, seed).open() for seed, num_envs in enumerate((1, 3, 8))]
            await asyncio.gather(*(stream.walk(5 * T) for stream in streams))
            for stream in streams:
                check_against_learner(network(config), stream)

    asyncio.run(scenario())


def test_a_state_that_is_not_reset_would_be_noticed() -> None:
    """The control of the test above."""

    async def scenario() -> None:
        async with serving(LSTM) as engine:
            stream = await Stream(engine, 4, 1).open()
            await stream.walk(5 * T)
            stream.initial[2]["recurrent.h"] = np.zeros_like(stream.initial[2]["recurrent.h"])
            with pytest.raises(AssertionError):
                check_against_learner(network(LSTM), stream)

    asyncio.run(scenario())


@pytest.mark.parametrize("config", [LSTM, STACK], ids=["lstm", "stack"])
def test_a_new_stream_knows_nothing_of_the_one_before(config: PolicySection) -> None:
    """Even if it goes on in the middle of an episode, under the same name and with as many environments."""

    async def first_replies(engine: Engine) -> Stream:
        stream = await Stream(engine, 4, 7).open()
        stream.random = np.random.default_rng(99)
        stream.rows.append({})
        # Not the first step of an episode.
        await stream.walk(T)
        return stream

    async def scenario() -> None:
        async with serving(config) as engine:
            former = await Stream(engine, 4, 7).open()
            await former.walk(2 * T)
            engine.disconnect(former.session)
            later = await first_replies(engine)
        async with serving(config) as engine:
            fresh = await first_replies(engine)
        policy = network(config)
        for stream in (later, fresh):
            stream.rows, stream.first[0] = stream.rows[1:], np.ones(4, np.bool_)
            stream.initial = [{name: np.zeros((4, 7), np.float32) for name in ("recurrent.h", "recurrent.c")}]
            stream.initial = stream.initial if config is LSTM else [{}]
            check_against_learner(policy, stream)
        np.testing.assert_array_equal(later.rows[0]["observation.x"], fresh.rows[0]["observation.x"])

    asyncio.run(scenario())


def test_the_state_is_only_sent_where_an_unroll_starts_and_frames_never() -> None:
    async def scenario() -> None:
        async with serving(BOTH) as engine:
            stream = await Stream(engine, 2, 0).open()
            names = [spec.name for spec in stream.welcome.state]
            assert sorted(names) == [
                "frames.observation.code",
                "frames.observation.x",
                "recurrent.c",
                "recurrent.h",
            ]
            await stream.walk(1)
            assert sorted(stream.initial[0]) == ["recurrent.c", "recurrent.h"]
            reply = await engine.act(stream.session, stream.rows[0], stream.first[0], False)
            assert reply.state == {}

    asyncio.run(scenario())


def test_memory_is_that_of_open_streams_only() -> None:
    async def scenario() -> None:
        async with serving(BOTH) as engine:
            held = []
            for life in range(20):
                stream = await Stream(engine, 16, life).open()
                other = await Stream(engine, 16, life + 100).open()
                await asyncio.gather(stream.walk(3), other.walk(3))
                memory = engine._sessions[stream.session].memory
                assert memory is not None
                held.append(sum(tensor.untyped_storage().nbytes() for tensor in memory.values()))
                engine.disconnect(stream.session)
                engine.disconnect(other.session)
                assert not engine._sessions
            # A stream holds its own rows (maybe with the newest frame), never a batch with those of others.
            recurrent, frame = 16 * 2 * 4 * 4, 16 * (3 * 4 + 2)
            assert set(held) <= {recurrent + 2 * frame, recurrent + 3 * frame}

    asyncio.run(scenario())
