"""Several learners over gloo, in processes of their own: one result, one decision, and no hanging."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from services.learner.checkpoint import CheckpointStore
from services.learner.rounds import Round
from shoal.config.ranks import Ranks
from shoal.records import Episode
from tests.service.group_member import NUM_STEPS, make_batch, make_clipped, make_trainer

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
SIZE = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def members(out: Path, timeout_s: float, *scenes: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    port, started = free_port(), []
    try:
        for rank in range(SIZE):
            ranks = Ranks(rank, SIZE, rank, SIZE).environment("127.0.0.1", port)
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.service.group_member", str(out), str(timeout_s), *scenes],
                    cwd=ROOT,
                    env=os.environ | ranks | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.PIPE,
                )
            )
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("group") / "out"


@pytest.fixture(scope="module")
def played(out: Path) -> Callable[[str], list[bytes]]:
    """What each learner has made of a scene; they have played them one after the other."""
    scenes = ("train", "clipped", "policies", "agree", "not_finite", "divided", "resumed", "gone_back")
    with members(out, PATIENCE_S, *scenes) as started:
        assert [process.wait(PATIENCE_S) for process in started] == [0] * SIZE
    return lambda scene: [Path(f"{out}.{scene}.{rank}").read_bytes() for rank in range(SIZE)]


@pytest.mark.parametrize("scene", ["train", "divided"])
def test_several_learners_are_one_with_the_whole_batch(
    played: Callable[[str], list[bytes]], scene: str
) -> None:
    """Of unequal weight: one has more autoreset rows, the other environments that count less or nothing."""
    batch = make_batch(0)
    valid = [float((batch.valid_TB * batch.weight_B)[:, half].sum()) for half in (slice(4), slice(4, 8))]
    assert min(valid) < 0.9 * max(valid), "the case would not tell a mean of means"
    found = [load(data) for data in played(scene)]
    alone = make_trainer()
    outcomes = [alone.step(make_batch(step)) for step in range(NUM_STEPS)]
    worst = 0.0
    for name, array in alone.state().items():
        for other in found:
            if name != "rng/cpu":
                np.testing.assert_array_equal(other[name], found[0][name], err_msg=name)
                np.testing.assert_allclose(other[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
                worst = max(worst, float(np.abs(other[name] - array).max()))
    losses = [[outcome.loss, outcome.grad_norm] for outcome in outcomes]
    np.testing.assert_allclose(found[0]["losses"], losses, rtol=1e-4, atol=1e-5)
    entropies = [outcome.metrics["entropy"].item() for outcome in outcomes]
    np.testing.assert_allclose(found[-1]["entropies"], entropies, rtol=1e-4)
    moved = max(
        float(np.abs(array - before).max())
        for array, before in zip(alone.weights().values(), make_trainer().weights().values(), strict=True)
    )
    print(f"{scene}: two learners differ by {worst:.1e} from one, whose weights moved by {moved:.1e}")
    assert moved > 0.01


def test_several_learners_of_ppo_are_one_with_the_whole_batch(
    played: Callable[[str], list[bytes]],
) -> None:
    """Advantages, observations and returns are normalised over all; passes end alike. Shares are unequal."""
    found = [load(data) for data in played("clipped")]
    for name, array in found[0].items():
        if not name.endswith("rng/cpu"):
            np.testing.assert_array_equal(found[1][name], array, err_msg=name)
    alone = make_clipped(minibatches=1)
    passes = []
    for step in range(NUM_STEPS):
        before = alone.state()["adam/num_steps/policy"]
        alone.step(make_batch(step))
        passes.append(int(alone.state()["adam/num_steps/policy"] - before))
    worst = 0.0
    for name, array in alone.state().items():
        if name != "rng/cpu":
            np.testing.assert_allclose(found[0][f"whole/{name}"], array, rtol=1e-5, atol=1e-5, err_msg=name)
            worst = max(worst, float(np.abs(found[0][f"whole/{name}"] - array).max()))
    print(f"two learners differ by {worst:.1e} from one, after passes of {passes}")
    assert min(passes) < 4 <= max(passes), "the case would not tell whether passes end alike"


def test_policies_do_not_wait_for_each_other(played: Callable[[str], list[bytes]]) -> None:
    expected = [
        [told for number in range(50) for told in (2 * (base + number), base + number, base + number)]
        for base in (0.0, 100.0)
    ]
    for text in played("policies"):
        assert text.decode() == repr(expected)


@pytest.mark.parametrize("scene", ["resumed", "gone_back"])
def test_every_part_of_a_divided_policy_goes_on_from_what_the_chief_has_read(
    out: Path, played: Callable[[str], list[bytes]], scene: str
) -> None:
    """The whole state of every learner is that of the file, to the bit."""
    found = [load(data) for data in played(scene)]
    stores = [CheckpointStore(Path(f"{out}.{scene}.{rank}.run") / "checkpoints", 3) for rank in range(SIZE)]
    checkpoint = stores[0].newest()
    assert checkpoint is not None
    assert stores[1].newest() is None, "only the chief could read"
    for rank, state in enumerate(found):
        assert state.keys() == checkpoint.tensors.keys()
        for name, array in checkpoint.tensors.items():
            # What others draw at random is their own.
            if rank == 0 or name != "rng/cpu":
                assert state[name].tobytes() == array.tobytes(), f"{name} of rank {rank} differs"


def test_what_is_not_finite_on_one_learner_stops_all_before_the_step(
    played: Callable[[str], list[bytes]],
) -> None:
    for text in played("not_finite"):
        assert b"NaN or infinity at learner step 2: loss" in text


def round_of(**told: Any) -> Round:
    nothing = {"is_stopping": False, "is_complete": False, "env_steps": 0, "num_transitions": 0}
    return Round(**{**nothing, "episodes": (), "policy_version": -1, **told})


def test_learners_agree_on_a_round(played: Callable[[str], list[bytes]]) -> None:
    texts = played("agree")
    assert len(set(texts)) == 1, "all heard the same"
    waiting, complete, stopping, data, total, empty = texts[0].decode().splitlines()
    assert waiting == repr(round_of(num_transitions=14, policy_version=9))
    episodes = (Episode(0.1, 10**6, 7), Episode(1.1, 10**6, 6), Episode(1.1, 10**6 + 1, 6))
    assert complete == repr(
        round_of(is_complete=True, env_steps=101, num_transitions=11, episodes=episodes, policy_version=11)
    )
    assert stopping == repr(round_of(is_stopping=True, is_complete=True))
    assert (data, total, empty) == (repr(b"of the chief"), "3.0", repr(b""))


@pytest.mark.parametrize(("number", "timeout_s"), [(signal.SIGKILL, PATIENCE_S), (signal.SIGSTOP, 2.0)])
def test_a_learner_without_its_peer_ends_with_the_reason(
    tmp_path: Path, number: signal.Signals, timeout_s: float
) -> None:
    out = tmp_path / "out"
    with members(out, timeout_s, "lose") as (first, second):
        deadline = time.monotonic() + PATIENCE_S
        while not Path(f"{out}.lose.1").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        second.send_signal(number)
        began = time.monotonic()
        assert first.wait(PATIENCE_S) == 0
        took_s = time.monotonic() - began
    text = Path(f"{out}.lose.0").read_text()
    print(f"after {took_s:.2f} s: {text}")
    if number == signal.SIGKILL:
        assert text.startswith("another learner has gone, and rank 0 of 2 cannot go on without it")
        assert took_s < timeout_s / 2, "the end of a process is seen at once"
    else:
        assert text.startswith("another learner was silent for 2 s (learner.peer_timeout_s)")
