"""The public replay client against real shards in processes of their own, and its example and document."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.clients.replay import ArraySpec, Episode, ReplayClient, anneal
from shoal.config import load_config
from shoal.errors import (
    ConfigError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UserError,
)
from tests.service.replay_server import ROOT, ShardProcess, stats_of_all

TABLES = {
    "train": {"kind": "queue"},
    "steps": {"kind": "transition", "alpha": 1.0, "n_step": 1},
    "uniform": {"kind": "transition"},
    "pairs": {"kind": "sequence", "alpha": 1.0, "unrolls": 2},
    "strict": {"kind": "transition"},
    "empty": {"kind": "sequence"},
    "weighted": {"kind": "transition", "alpha": 1.0},
}
TOKEN = "a-token-of-at-least-some-length"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ShardProcess]]:
    directory = tmp_path_factory.mktemp("shards")
    settings = (f"replay.tables={json.dumps(TABLES)}", f"security.token={TOKEN}")
    started = [ShardProcess(directory, name, *settings) for name in ("a", "b")]
    try:
        for shard in started:
            asyncio.run(shard.listen())
            with ReplayClient(shard.address.target, TOKEN) as client:
                client.writer("train").close()
        yield started
    finally:
        for shard in started:
            shard.kill()


@pytest.fixture
def client(shards: list[ShardProcess]) -> Iterator[ReplayClient]:
    with ReplayClient([shard.address.target for shard in shards], TOKEN, timeout_s=20.0) as client:
        yield client


def columns(number: float, num_steps: int = 4, num_envs: int | None = 3) -> dict[str, np.ndarray]:
    shape: tuple[int, ...] = (num_steps + 1,) if num_envs is None else (num_steps + 1, num_envs)
    return {
        "observation": np.full((*shape, 2), number, np.float32),
        "action": np.zeros(shape, np.int64),
        "reward": np.full(shape, number, np.float32),
        "terminated": np.zeros(shape, bool),
        "truncated": np.zeros(shape, bool),
        "first": np.zeros(shape, bool),
    }


def test_transitions_are_written_sampled_by_priority_and_updated(client: ReplayClient) -> None:
    with client.writer("steps", actor_id="me") as writer:
        for number in range(20):
            writer.append(columns(number), priorities=np.full((4, 3), 1.0 if number % 2 else 3.0))
        writer.append(columns(99, num_envs=None), priorities=[1.0] * 4)
    total = stats_of_all(client).totals["steps"]
    assert (total.kind, total.num_items, total.num_rejected) == ("transition", 244, 0)
    # 10 unrolls of 12 rows with priority 3, 10 with 1, and the last one of 4.
    assert total.priority_mass == 120 * 3 + 120 + 4
    with client.sampler("steps", 500, beta=1.0, seed=1) as sampler:
        batch = next(sampler)
        numbers = batch.columns["observation"][:, 0]
        even = numbers % 2 == 0
        assert 0.70 < even.mean() < 0.78
        np.testing.assert_allclose(batch.weights[even], 1 / 3)
        np.testing.assert_allclose(batch.weights[~even], 1.0)
        np.testing.assert_array_equal(batch.columns["reward"], numbers)
        batch.update_priorities(np.zeros(500))
        sampler.flush()
        updated = len(
            {(key, number) for key, number in zip(batch.keys.tolist(), numbers.tolist(), strict=True)}
        )
        assert sampler.stats.num_updated <= 244
        assert sampler.stats.num_gone == 0
    total = stats_of_all(client).totals["steps"]
    assert total.num_priorities_updated >= updated
    assert total.priority_mass < 120 * 3
    assert len(stats_of_all(client).shards) == 2


def test_sequences_are_written_for_each_env_and_joined(client: ReplayClient) -> None:
    with client.writer("pairs", actor_id="me") as writer:
        for number in range(3):
            unroll = columns(number)
            unroll["observation"] += np.arange(3, dtype=np.float32)[:, np.newaxis] * 10
            writer.append(unroll, priorities=[1.0, 2.0, 3.0], episodes=[Episode(1.5, 4)])
        writer.append(columns(7), continues=False)
    with client.sampler("pairs", 64) as sampler:
        batch = sampler.next()
        assert len(batch) == len(batch.trajectories) == 64
        # Two unrolls of 4 steps: rows 0 to 3 of the first and all five of the second.
        assert batch.columns["observation"].shape == (9, 64, 2)
        begins, ends = batch.columns["observation"][0, :, 0], batch.columns["observation"][-1, :, 0]
        assert set((begins % 10).tolist()) == {0.0}
        assert set((ends % 10).tolist()) == {1.0}, (
            "a sequence of two begins at every second unroll; the gap is none"
        )
        assert {trajectory.stream for trajectory in batch.trajectories} == {0, 1, 2}
        assert sum(len(trajectory.episodes) for trajectory in batch.trajectories) > 0
        assert batch.weights.shape == (64,)


def test_a_queue_gives_what_was_written_once(client: ReplayClient) -> None:
    with client.writer("train") as writer:
        for number in range(6):
            writer.append(columns(number))
    with client.sampler("train", 2, prefetch=1) as sampler:
        seen = [t.columns["reward"][0, 0] for _ in range(3) for t in next(sampler).trajectories]
        assert sorted(seen) == list(range(6))
        with pytest.raises(UnavailableError, match=r"within 0\.5 s: shard .* has nothing to sample"):
            sampler.next(timeout_s=0.5)


@pytest.fixture
def client_of_one(shards: list[ShardProcess]) -> Iterator[ReplayClient]:
    """Which of two shards gets what depends on which is dialled first."""
    with ReplayClient(shards[0].address.target, TOKEN, timeout_s=20.0) as client:
        yield client


def test_what_a_table_refuses_surfaces_once_from_the_writer(client_of_one: ReplayClient) -> None:
    client = client_of_one
    declared = [ArraySpec("action", "int64", (), num_categories=2)]
    with client.writer("strict", declared=declared) as writer:
        writer.append(columns(1))
        writer.append({**columns(2), "action": np.full((5, 3), 2)})
        with pytest.raises(
            InvalidArgumentError,
            match=r"^table 'strict' has rejected 1 of 2 appends, the last because: .*action",
        ):
            writer.flush()
        writer.flush()
        assert (writer.stats.num_acked, writer.stats.num_rejected) == (1, 1)
    other = client.writer("strict", declared=[ArraySpec("action", "int32", ())], max_unacked_items=1)
    other.append(columns(1))
    with pytest.raises(FailedPreconditionError, match="action"):
        other.flush()
    with pytest.raises(FailedPreconditionError, match="action"):
        other.append(columns(1))
    other.close()


@pytest.mark.parametrize(
    ("change", "options", "complaint"),
    [
        ({"first": None}, {}, "column 'first' is missing: give bool"),
        ({"first": np.zeros(5)}, {}, r"column 'first' is float64\[5\]"),
        (
            {"reward": np.zeros((5, 2), np.float32)},
            {},
            r"column 'reward' has shape \[5, 2\], column 'first' has \[5, 3\]",
        ),
        ({"action": np.array([["a"] * 3] * 5)}, {}, "cannot encode dtype"),
        (
            {},
            {"priorities": [1.0]},
            r"priorities of shape \[1\] for 4 steps of 3 environments: a transition table takes \[4, 3\]",
        ),
        ({}, {"priorities": np.full((4, 3), -1.0)}, "priority -1.0 is not a finite number"),
    ],
)
def test_what_cannot_be_appended_is_refused_at_once(
    client: ReplayClient, change: dict[str, object], options: dict[str, object], complaint: str
) -> None:
    with client.writer("steps") as writer:
        given = {name: array for name, array in {**columns(0), **change}.items() if array is not None}
        with pytest.raises(InvalidArgumentError, match=complaint):
            writer.append(given, **options)  # type: ignore[arg-type]
        assert writer.stats.num_acked == 0


def test_tables_that_are_not_there_and_priorities_that_are_not_used(client: ReplayClient) -> None:
    with pytest.raises(NotFoundError, match="no replay table 'nope' there: there are train, steps"):
        client.writer("nope")
    with client.sampler("nope", 4) as sampler, pytest.raises(NotFoundError, match="no replay table 'nope'"):
        next(sampler)
    with client.writer("uniform") as writer:
        writer.append(columns(1))
    with client.sampler("uniform", 4) as sampler:
        batch = next(sampler)
        np.testing.assert_array_equal(batch.weights, 1.0)
        with pytest.raises(FailedPreconditionError, match="use `columns`"):
            _ = batch.trajectories
        batch.update_priorities([1.0] * 4)
        with pytest.raises(FailedPreconditionError, match="alpha 0"):
            sampler.flush()
        with pytest.raises(FailedPreconditionError, match="alpha 0"):
            batch.update_priorities([1.0] * 4)


def test_nothing_waits_for_ever(client: ReplayClient, tmp_path: Path) -> None:
    waits = pytest.raises(UnavailableError, match=r"no batch of 4 items within 0\.2 s")
    with client.sampler("empty", 4) as sampler, waits:
        sampler.next(timeout_s=0.2)
    with ReplayClient(f"unix:{tmp_path}/nobody", timeout_s=2.0) as alone:
        with pytest.raises(UnavailableError, match=r"no replay shard is there: unix:.*for 2 s"):
            alone.writer("steps")
        with pytest.raises(UnavailableError, match="no replay shard is there"):
            alone.stats()
        with pytest.raises(UnavailableError, match="is away"):
            alone.sampler("steps", 1).next()


def test_stats_tell_which_shards_are_away(shards: list[ShardProcess], tmp_path: Path) -> None:
    addresses = [shards[0].address.target, f"unix:{tmp_path}/nobody"]
    with ReplayClient(addresses, TOKEN) as client:
        stats = client.stats()
        assert list(stats.shards) == addresses[:1]
        assert list(stats.away) == addresses[1:]
        assert set(stats.totals) == set(TABLES)


def test_who_may_not_is_told_so(shards: list[ShardProcess]) -> None:
    with ReplayClient(shards[0].address.target, "wrong") as client:
        with pytest.raises(UnauthenticatedError):
            client.stats()
        with pytest.raises(UnauthenticatedError):
            client.writer("steps")
        with client.sampler("steps", 1) as sampler, pytest.raises(UnauthenticatedError):
            next(sampler)


@pytest.mark.parametrize(
    ("addresses", "options"),
    [("nonsense", {}), ("host:0", {}), ("host:1", {"token": "t", "security": "both"}), ("unix:relative", {})],
)
def test_a_client_that_cannot_be_is_refused(addresses: str, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        ReplayClient(addresses, **options)  # type: ignore[arg-type]


def test_settings_out_of_bounds_are_the_callers_mistake(client: ReplayClient) -> None:
    with pytest.raises(ConfigError, match="no address"):
        ReplayClient([])
    with pytest.raises(UserError, match="unknown dtype 'int'"):
        client.writer("steps", declared=[ArraySpec("action", "int", ())])
    with pytest.raises(ConfigError, match="max_unacked_items is 0"):
        client.writer("steps", max_unacked_items=0)
    with pytest.raises(UserError, match="batch_size 0"):
        client.sampler("steps", 0)
    with client.writer("weighted") as writer:
        writer.append(columns(1))
    with (
        client.sampler("weighted", 1, beta=anneal(2.0, 3.0, 10)) as sampler,
        pytest.raises(UserError, match="beta"),
    ):
        next(sampler)


def test_all_clients_share_one_thread_that_ends_with_the_last(
    shards: list[ShardProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def threads() -> int:
        return sum(thread.name == "shoal-client" for thread in threading.enumerate())

    assert threads() == 0
    first = ReplayClient(shards[0].address.target, TOKEN)
    second = ReplayClient(shards[1].address.target, TOKEN)
    writer = second.writer("uniform")
    assert threads() == 1
    first.close()
    first.close()
    with pytest.raises(UnavailableError, match="closed"):
        first.stats()
    assert second.stats().shards
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        with pytest.raises(UserError, match="before the process forked"):
            second.stats()
    second.close()
    assert threads() == 0
    with pytest.raises(UnavailableError, match="the replay client is closed"):
        writer.append(columns(1))
    writer.close()


def test_an_error_in_the_block_is_not_hidden_by_a_flush(tmp_path: Path, shards: list[ShardProcess]) -> None:
    with pytest.raises(KeyError), ReplayClient(shards[0].address.target, TOKEN) as client:  # noqa: PT012
        client.writer("steps").append(columns(1))
        raise KeyError


def run_python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_needs_neither_torch_nor_gymnasium() -> None:
    program = """
        import sys
        for name in ("torch", "gymnasium"):
            sys.modules[name] = None
        import shoal.clients.replay
        print(sorted(name for name in sys.modules if name.split(".")[0] == "services"))
    """
    assert run_python("-c", textwrap.dedent(program)).strip() == "[]"


def test_the_example_runs() -> None:
    printed = run_python("examples/replay_client.py")
    print(printed)
    assert "observation: float32[256, 8]" in printed
    assert "a batch of sequences: observation [41, 16, 8]" in printed
    for line in re.findall(r"table .*", printed):
        inserted, stored, sampled_out, evicted, rejected, _ = map(int, re.findall(r"\d+", line))
        assert inserted == stored + sampled_out + evicted + rejected > 0
        assert rejected == 0


def test_the_documents_configuration_is_that_of_the_example(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/replay-client.md").read_text(), re.DOTALL)
    file = tmp_path / "run.yaml"
    file.write_text(block)
    assert run_python("-m", "services.replay", "--config", str(file), "--check").strip() == "ok"
    tables = run_python("-c", "import json, examples.replay_client as e; print(json.dumps(e.TABLES))")
    expected = load_config(None, [f"replay.tables={tables}"], {}).replay.tables
    assert load_config(file, [], {}).replay.tables == expected


def test_the_document_shows_the_code_of_the_example() -> None:
    example = (ROOT / "examples/replay_client.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/replay-client.md").read_text(), re.DOTALL)
    flat = "\n".join(line.strip() for line in example.splitlines())
    assert len(blocks) >= 4
    for block in blocks:
        for part in block.split("...\n"):
            assert "\n".join(line.strip() for line in part.splitlines()).strip() in flat, part
