"""Guards of a real learner process, which is made to fail in all the ways that they look for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from services.learner.checkpoint import CheckpointStore
from tests.service.learner_rig import Rig, payload, rig, scrape

# An encoder that keeps half a MiB of each batch, up to 300 MiB: more than 2 s of the batches that are fed.
LEAKING = """
import torch
from torch import nn

class Leaking(nn.Module):
    def __init__(self, observation):
        super().__init__()
        self.num_features = 8
        self.layer = nn.Linear(4, 8)
        self.kept = []

    def forward(self, observation):
        if len(self.kept) < 600:
            self.kept.append(torch.ones(1 << 17))
        return torch.tanh(self.layer(observation["observation"]))
"""


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, 110.0))


async def raised(made: Rig, address: str, guard: str, at: float = 1.0) -> None:
    async with asyncio.timeout(60.0):
        while (await scrape(address))[f"shoal_learner_guard_active{{{guard}}}{{policy}}"] != at:
            await asyncio.sleep(0.05)


def test_a_learner_that_fails_in_every_way_says_so(tmp_path: Path) -> None:
    (tmp_path / "leaking.py").write_text(LEAKING)
    guards = {
        "throughput_stall": {"no_batch_s": 1.0},
        "memory_growth": {"warmup_s": 0.0, "window_s": 1.5, "mib_per_minute": 100.0},
    }

    async def body() -> None:
        async with rig(
            tmp_path / "run",
            policy={"hidden_sizes": [16], "network": f"{tmp_path}/leaking.py:Leaking"},
            guards=guards,
        ) as made:
            announced = await made.learner.start()
            address = announced["metrics"]
            await made.append(*[payload()] * 100)
            await made.append(*[payload(reward=1e5)] * 40)
            await raised(made, address, "gradient_explosion")
            await raised(made, address, "value_explosion")
            await raised(made, address, "throughput_stall")
            feeding = asyncio.create_task(feed(made))
            await raised(made, address, "throughput_stall", 0.0)
            await raised(made, address, "memory_growth")
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            fired = {
                name: value
                for name, value in (await scrape(address)).items()
                if name.startswith("shoal_learner_guard_fired_total") and value
            }
            made.learner.terminate()
            text = await made.learner.errors()
            lines = [line for line in text.splitlines() if " guard " in line]
            print(f"fired: {fired}", *lines, sep="\n")
            assert made.result()["guards"].keys() >= {
                *("gradient_explosion", "value_explosion", "throughput_stall", "memory_growth")
            }
            assert not made.result()["guards"].get("non_finite")
            assert "WARNING learner learner guard memory_growth: this process's memory grows by" in text

    async def feed(made: Rig) -> None:
        """Slowly: the leak is to last as long as the window."""
        while True:
            await made.append(payload())
            await asyncio.sleep(0.005)

    run(body())


def test_a_guard_that_stops_saves_what_is_well_and_ends_with_code_2(tmp_path: Path) -> None:
    async def body() -> None:
        guards = {"throughput_stall": {"action": "stop", "no_batch_s": 1.0}}
        async with rig(tmp_path / "run", guards=guards) as made:
            await made.learner.start()
            await made.append(*[payload()] * 3)
            text = await made.learner.errors()
            last = text.splitlines()[-1]
            print(last)
            assert made.learner.process is not None
            assert made.learner.process.returncode == 2
            assert last.startswith("error: guard throughput_stall: no batch has come for ")
            assert "Traceback" not in text
            saved = CheckpointStore(tmp_path / "run" / "checkpoints", 3).newest()
            assert saved is not None
            assert saved.progress.learner_steps == 3

    run(body())


def test_nan_goes_back_within_one_step_and_nothing_of_it_is_published(tmp_path: Path) -> None:
    """`follow` of the rig asserts that every weight that arrives is finite."""

    async def body() -> None:
        guards = {"non_finite": {"action": "rollback"}}
        async with rig(tmp_path / "run", guards=guards) as made:
            announced = await made.learner.start("learner.checkpoint_every_s=0.01")
            store = CheckpointStore(tmp_path / "run" / "checkpoints", 3)
            sent = saved = 0
            while not saved:
                await made.append(payload())
                sent += 1
                await made.version_above(sent - 1)
                newest = await asyncio.to_thread(store.newest)
                saved = newest.progress.learner_steps if newest is not None else 0
            await made.append(payload(reward=3e38))
            await made.append(*[payload()] * 10)
            # One more for what it goes back to.
            await made.version_above(sent + 10)
            metrics = await scrape(announced["metrics"])
            made.learner.terminate()
            text = await made.learner.errors()
            (line,) = [line for line in text.splitlines() if "gone back" in line]
            print(line)
            assert metrics["shoal_learner_rollbacks_total{policy}"] == 1
            assert made.versions == sorted(set(made.versions))
            assert f"NaN or infinity at learner step {sent + 1}" in text
            assert f"gone back from learner step {sent} to " in line
            assert made.result()["learner_steps"] >= saved + 10, "it went on from a checkpoint"
            assert made.result()["guards"] == {"non_finite": 1}

    run(body())
