"""The replay without the rest of shoal: start a shard, write, sample by priority, send priorities back.

    python examples/replay_client.py

with the Python of `.venv` after `make setup`, or one that has shoal: `pip install .` in the checkout.
`docs/replay-client.md` explains it step by step.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from shoal.clients.replay import ReplayClient, anneal

# The shard's tables, as in the configuration of a run.
TABLES = {
    "steps": {"kind": "transition", "max_items": 10_000, "alpha": 0.6, "n_step": 3, "discount": 0.99},
    "unrolls": {"kind": "sequence", "max_items": 1_000, "alpha": 0.9, "unrolls": 2, "overlap_unrolls": 1},
}


@contextmanager
def running_shard(directory: Path) -> Iterator[str]:
    """`python -m services.replay` on a unix socket; yields its address once it listens."""
    address, announce = f"unix:{directory}/shard.sock", directory / "shard.json"
    settings = {
        "replay.tables": json.dumps(TABLES),
        "replay.listen.grpc": address,
        "replay.listen.health": f"unix:{directory}/health.sock",
        "replay.listen.announce": announce,
    }
    command = [sys.executable, "-m", "services.replay"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    shard = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 60
        while not announce.exists():
            if shard.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the shard did not come up; its exit code is {shard.returncode}")
            time.sleep(0.05)
        yield address
    finally:
        shard.terminate()
        shard.wait(timeout=60)


def unroll(rng: np.random.Generator, num_steps: int = 20, num_envs: int = 4) -> dict[str, np.ndarray]:
    """What a policy did in a few environments: T+1 rows, of which the last is the next unroll's first."""
    shape = (num_steps + 1, num_envs)
    terminated = rng.random(shape) < 0.02
    terminated[1:] &= ~terminated[:-1]
    # As Gymnasium resets: the step after an episode's end leads to the first row of the next episode.
    first = np.zeros(shape, bool)
    first[2:] = terminated[:-2]
    return {
        "observation": rng.normal(size=(*shape, 8)).astype(np.float32),
        "action": rng.integers(0, 2, shape),
        "reward": rng.normal(size=shape).astype(np.float32),
        "terminated": terminated,
        "truncated": np.zeros(shape, bool),
        "first": first,
    }


def transitions(client: ReplayClient, rng: np.random.Generator) -> None:
    with client.writer("steps", actor_id="demo") as writer:
        for _ in range(50):
            writer.append(unroll(rng), priorities=rng.exponential(size=(20, 4)))

    with client.sampler("steps", batch_size=256, beta=anneal(0.4, 1.0, num_batches=100)) as sampler:
        for _ in range(20):
            batch = next(sampler)
            td_errors = np.abs(batch.columns["reward"]) * batch.weights
            batch.update_priorities(td_errors + 1e-3)
        sampler.flush()
        print("a batch of transitions:")
        for name, column in batch.columns.items():
            print(f"  {name}: {column.dtype}{list(column.shape)}")
        print(f"weights from {batch.weights.min():.3f} to {batch.weights.max():.3f}")
        print(f"{sampler.stats.num_updated} priorities updated, {sampler.stats.num_gone} items were gone")


def sequences(client: ReplayClient, rng: np.random.Generator) -> None:
    with client.writer("unrolls", actor_id="demo") as writer:
        last = unroll(rng)
        writer.append(last)
        for _ in range(10):
            following = unroll(rng)
            for name, column in following.items():
                column[0] = last[name][-1]
            writer.append(following)
            last = following

    with client.sampler("unrolls", batch_size=16) as sampler:
        batch = next(sampler)
        print(f"a batch of sequences: observation {list(batch.columns['observation'].shape)}")


def main() -> None:
    rng = np.random.default_rng(1)
    with (
        tempfile.TemporaryDirectory() as directory,
        running_shard(Path(directory)) as address,
        ReplayClient(address) as client,
    ):
        transitions(client, rng)
        sequences(client, rng)
        for name, table in client.stats().totals.items():
            print(
                f"table {name}: {table.num_inserted} inserted = {table.num_items} stored + "
                f"{table.num_sampled_out} sampled out + {table.num_evicted} evicted + "
                f"{table.num_rejected} rejected; {table.num_samples} samples"
            )


if __name__ == "__main__":
    main()
