"""P4: what an inference server adds to its forward pass, for 256 environments from four actors.

Compared in the same run, in turns: a step through a real server with shoal's client, the bare pass of 256
rows, and a bare gRPC echo of the same number of bytes, four streams at a time in both cases.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.console import print_table, verdict
from benchmarks.frames_env import NUM_ACTIONS, pictures
from benchmarks.service_process import ServiceProcess, running
from benchmarks.stream_load import ActCaller, EchoCaller, Load, echo_server, joined, run_clients
from shoal.cli.scrape import Metrics, by_label, fetch, parse, total
from shoal.clients.stream_tensors import ColumnsReader, ColumnsWriter, TensorWriter
from shoal.records import ACTION, LOG_PROB, OBSERVATION, ArraySpec, Columns, DiscreteAction, EnvSpec
from shoal.v1 import inference_service_pb2 as pb

TARGET = 1.5
NUM_ACTORS = 4
ENVS_PER_ACTOR = 64
BATCH = NUM_ACTORS * ENVS_PER_ACTOR
# Of each actor, sent in turn.
NUM_OBSERVATIONS = 8
SERVER_PHASES = ("decode", "queue_wait", "copy", "forward", "reply")


@dataclass(frozen=True)
class Case:
    """A network and what it is shown."""

    name: str
    spec: EnvSpec
    policy: dict[str, object]
    observations: Sequence[Columns]
    inference: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    num_rounds: int = 3
    seconds: float = 5.0
    forward_s: float = 2.0


@dataclass(frozen=True)
class Figures:
    """All rounds of a case."""

    forward: Load
    echo: Load
    act: Load
    phases: dict[str, float]
    rows_per_pass: float

    def ratio(self, percent: float) -> float:
        whole = self.forward.percentile_s(percent) + self.echo.percentile_s(percent)
        return self.act.percentile_s(percent) / whole

    @property
    def throughput_ratio(self) -> float:
        """Of what streams would do that take the sum of both medians for each step."""
        whole = self.forward.percentile_s(50) + self.echo.percentile_s(50)
        return NUM_ACTORS / whole / self.act.per_s


def cases() -> list[Case]:
    rng = np.random.default_rng(1)
    action = DiscreteAction(2)
    vectors = [
        {OBSERVATION: rng.standard_normal((ENVS_PER_ACTOR, 4), np.float32)} for _ in range(NUM_OBSERVATIONS)
    ]
    mlp = EnvSpec("CartPole-v1", (ArraySpec(OBSERVATION, "float32", (4,)),), action)
    shown = pictures()
    frames = [
        {OBSERVATION: np.take(shown, range(t, t + 7 * ENVS_PER_ACTOR, 7), axis=0, mode="wrap")}
        for t in range(NUM_OBSERVATIONS)
    ]
    cnn = EnvSpec("AtariShaped-v0", (ArraySpec(OBSERVATION, "uint8", (84, 84)),), DiscreteAction(NUM_ACTIONS))
    small, large = {"policy.network": "mlp"}, {"policy.network": "nature_cnn", "policy.frame_stack": 4}
    whole = {"inference.min_batch": BATCH, "inference.max_wait_ms": 50.0}
    return [
        Case("MLP 64x64, whatever waits is a batch", mlp, small, vectors),
        Case("MLP 64x64, batches of 256", mlp, small, vectors, whole),
        Case("Nature CNN, whatever waits is a batch", cnn, large, frames),
        Case("Nature CNN, batches of 256", cnn, large, frames, whole),
    ]


def measure(settings: Settings, directory: Path, chosen: Sequence[Case] | None = None) -> None:
    """Print P4, and where the time goes where it is missed."""
    print(
        f"\nP4  inference: {NUM_ACTORS} actors x {ENVS_PER_ACTOR} envs, one step in flight each; target: "
        f"at most {TARGET:g} x (bare forward pass of {BATCH} + bare gRPC echo of the same bytes)"
    )
    for number, case in enumerate(chosen or cases()):
        place = directory / f"p4-{number}"
        place.mkdir()
        _print(case, _measure(case, settings, place))


def _measure(case: Case, settings: Settings, directory: Path) -> Figures:
    forward, echo, act = [], [], []
    request, reply = wire_bytes(case)
    inference = _services(case, directory)
    with running([*inference]):
        server = inference[-1]
        before: list[Metrics] = []
        after: list[Metrics] = []
        for _ in range(settings.num_rounds):
            forward.append(_forward(case, settings.forward_s))
            target = f"unix:{directory}/echo.sock"
            with echo_server(target, reply):
                echo.append(run_clients(EchoCaller(target, request), NUM_ACTORS, settings.seconds))
            caller = ActCaller(server.target, case.spec, ENVS_PER_ACTOR, case.observations)
            act.append(
                run_clients(caller, NUM_ACTORS, settings.seconds, lambda: before.append(_scrape(server)))
            )
            after.append(_scrape(server))
    return Figures(joined(forward), joined(echo), joined(act), *_server_side(before, after))


def _services(case: Case, directory: Path) -> list[ServiceProcess]:
    """A learner that only gives away its first weights, and the server."""
    replay = ServiceProcess("replay", directory, {"replay.dir": str(directory / "replay")})
    shared = {**case.policy, "run.dir": str(directory / "run")}
    learner = ServiceProcess("learner", directory, {**shared, "addresses.replay": [replay.target]})
    settings = {**shared, **case.inference, "addresses.learner": learner.target}
    return [replay, learner, ServiceProcess("inference", directory, settings)]


def wire_bytes(case: Case) -> tuple[bytes, bytes]:
    """A step and its answer as they are on the wire."""
    request, response = pb.ActRequest(), pb.ActResponse()
    ColumnsWriter(request.step.observation).write(case.observations[0])
    TensorWriter(request.step.first).write(np.zeros(ENVS_PER_ACTOR, np.bool_))
    request.step.step = response.actions.step = 1000
    ColumnsWriter(response.actions.outputs).write(_outputs())
    return request.SerializeToString(), response.SerializeToString()


def _outputs() -> Columns:
    return {ACTION: np.zeros(ENVS_PER_ACTOR, np.int64), LOG_PROB: np.zeros(ENVS_PER_ACTOR, np.float32)}


def _forward(case: Case, seconds: float) -> Load:
    """Acting on 256 rows with as many threads as the server takes by itself."""
    import torch

    from benchmarks import bare_torch

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    if case.policy["policy.network"] == "mlp":
        policy, rows = bare_torch.mlp(4, (64, 64), 2), torch.randn(BATCH, 4)
    else:
        policy = bare_torch.nature_cnn(NUM_ACTIONS)
        shape = (BATCH, bare_torch.NUM_FRAMES, *bare_torch.FRAME_SHAPE)
        rows = torch.randint(0, 256, shape, dtype=torch.uint8)
    clock = time.perf_counter
    took: list[float] = []
    bare_torch.act(policy, rows)
    until = clock() + seconds
    while (began := clock()) < until:
        bare_torch.act(policy, rows)
        took.append(clock() - began)
    return Load(np.array(took), seconds)


def _scrape(server: ServiceProcess) -> Metrics:
    return parse(asyncio.run(fetch(server.metrics_address)))


def _server_side(before: list[Metrics], after: list[Metrics]) -> tuple[dict[str, float], float]:
    """Seconds by phase of one request, and rows of one pass."""

    def grown(name: str) -> float:
        return sum(total(m, name) or 0.0 for m in after) - sum(total(m, name) or 0.0 for m in before)

    spent = dict.fromkeys(SERVER_PHASES, 0.0)
    for metrics, sign in [*((m, -1) for m in before), *((m, 1) for m in after)]:
        for _, phase, seconds in by_label(metrics, "phase"):
            if phase in spent:
                spent[phase] += sign * seconds
    requests, passes = grown("shoal_inference_requests_total"), grown("shoal_inference_batches_total")
    # A pass serves several requests: each of them waits for all of it.
    shared = {"copy": passes, "forward": passes}
    phases = {phase: seconds / (shared.get(phase, requests) or 1) for phase, seconds in spent.items()}
    return phases, grown("shoal_inference_rows_total") / (passes or 1)


def _print(case: Case, figures: Figures) -> None:
    request, reply = wire_bytes(case)
    rows = [
        ["bare forward pass", *_latency(figures.forward), ""],
        ["bare gRPC echo", *_latency(figures.echo), f"{figures.echo.per_s:,.0f}"],
        ["act", *_latency(figures.act), f"{figures.act.per_s:,.0f}"],
        ["act / (pass + echo)", f"{figures.ratio(50):.2f}", f"{figures.ratio(99):.2f}", ""],
    ]
    steps = figures.act.per_s * ENVS_PER_ACTOR
    met = [f"p{p} {verdict(figures.ratio(p), TARGET, at_most=True)}" for p in (50, 99)]
    notes = ["; ".join(met)]
    notes.append(
        f"{steps:,.0f} env steps/s; {figures.throughput_ratio:.2f} x as long per step as pass and echo; "
        f"{figures.rows_per_pass:.0f} rows in a pass; {len(request):,} bytes there, {len(reply):,} back"
    )
    if max(figures.ratio(50), figures.ratio(99)) > TARGET:
        notes += _breakdown(case, figures)
    print_table(f"    {case.name}:", ["", "p50 ms", "p99 ms", "messages/s"], rows, notes)


def _latency(load: Load) -> list[str]:
    return [f"{1000 * load.percentile_s(percent):.2f}" for percent in (50, 99)]


def _breakdown(case: Case, figures: Figures) -> list[str]:
    phases = ", ".join(f"{phase} {1000 * seconds:.2f}" for phase, seconds in figures.phases.items())
    client = ", ".join(f"{what} {1000 * seconds:.2f}" for what, seconds in client_costs(case).items())
    mean_ms = 1000 * float(figures.act.latencies_s.mean())
    known_ms = 1000 * (sum(figures.phases.values()) + sum(client_costs(case).values()))
    return [
        f"mean act {mean_ms:.2f} ms. Server, ms a request: {phases}. Client, ms a step: {client}.",
        f"The rest, {mean_ms - known_ms:.2f} ms, is gRPC, event loops and waiting for a core.",
    ]


def client_costs(case: Case, repeats: int = 200) -> dict[str, float]:
    """Seconds that the client spends on a step besides gRPC."""
    request, reply = pb.ActRequest(), wire_bytes(case)[1]
    write_observation = ColumnsWriter(request.step.observation).write
    write_first = TensorWriter(request.step.first).write
    outputs = tuple(ArraySpec(name, str(a.dtype), a.shape[1:]) for name, a in _outputs().items())
    read = ColumnsReader(1 << 20, outputs, ENVS_PER_ACTOR).read
    first = np.zeros(ENVS_PER_ACTOR, np.bool_)
    clock = time.perf_counter
    began = clock()
    for number in range(repeats):
        write_observation(case.observations[number % len(case.observations)])
        write_first(first)
        request.SerializeToString()
    encoded = clock()
    for _ in range(repeats):
        read(pb.ActResponse.FromString(reply).actions.outputs)
    return {"encode": (encoded - began) / repeats, "decode": (clock() - encoded) / repeats}
