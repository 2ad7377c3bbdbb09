"""Stable-Baselines3's side of P12, in a virtual environment of its own: nothing of shoal is imported here.

`python sb3_side.py ALGORITHM THREADS SECONDS` trains on HalfCheetah-v5, an update for every environment step,
and prints updates/s of a stretch that starts after a warm-up.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback

# Random actions first, then updates that do not count yet.
LEARNING_STARTS, WARM_UP_STEPS = 1000, 20
MAX_STEPS = 1_000_000


class Stretch(BaseCallback):
    """Ends the training when the time is over."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._began: tuple[float, int] | None = None
        self.updates_per_s = 0.0

    def _on_step(self) -> bool:
        now, updates = time.perf_counter(), self.model._n_updates
        if self._began is None:
            if self.num_timesteps >= LEARNING_STARTS + WARM_UP_STEPS:
                self._began = now, updates
            return True
        elapsed = now - self._began[0]
        self.updates_per_s = (updates - self._began[1]) / elapsed
        return elapsed < self._seconds


def main() -> None:
    name, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(threads)
    model = {"sac": SAC, "td3": TD3}[name](
        "MlpPolicy",
        "HalfCheetah-v5",
        batch_size=256,
        buffer_size=100_000,
        learning_starts=LEARNING_STARTS,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
        seed=1,
    )
    stretch = Stretch(seconds)
    model.learn(MAX_STEPS, callback=stretch)
    print(json.dumps({"updates_per_s": stretch.updates_per_s}))


if __name__ == "__main__":
    main()
