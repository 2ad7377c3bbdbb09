"""Stable-Baselines3's side of the learning table, in an interpreter of its own: imports nothing of shoal.

`python sb3_side.py ALGO ENV KWARGS STEPS SEED DIRECTORY` trains in one environment with SB3's defaults
and writes `history.jsonl` and `result.json` as shoal does: the mean return of the last 100 training episodes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import gymnasium
import stable_baselines3
from stable_baselines3.common.callbacks import BaseCallback

EVERY_S = 1.0


class Recorder(BaseCallback):
    """Writes a line a second. SB3's own buffer holds the last 100 episodes."""

    def __init__(self, directory: Path, started: float) -> None:
        super().__init__()
        self._directory = directory
        self._started = started
        self._next_s = 0.0

    def _on_training_start(self) -> None:
        self._history = (self._directory / "history.jsonl").open("w", encoding="utf-8")

    def _on_step(self) -> bool:
        if self.seconds >= self._next_s:
            self._next_s = self.seconds + EVERY_S
            record = {"time_s": self.seconds, "env_steps": self.num_timesteps}
            if self.mean_return is not None:
                record["episode_return"] = self.mean_return
            self._history.write(json.dumps(record) + "\n")
            self._history.flush()
        return True

    def _on_training_end(self) -> None:
        self._history.close()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def mean_return(self) -> float | None:
        episodes = self.model.ep_info_buffer
        return float(sum(episode["r"] for episode in episodes) / len(episodes)) if episodes else None


def main() -> None:
    started = time.monotonic()
    algo, env, kwargs, steps, seed, directory = sys.argv[1:]
    root = Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(root, started)
    environment = gymnasium.make(env, **json.loads(kwargs))
    kind = getattr(stable_baselines3, algo.upper())
    model = kind("MlpPolicy", environment, seed=int(seed), device="cpu")
    model.learn(int(steps), callback=recorder)
    result = {
        "end": "finished",
        "mean_return": recorder.mean_return,
        "env_steps": model.num_timesteps,
        "wall_clock_s": round(recorder.seconds, 3),
        "algorithm": algo,
        "version": stable_baselines3.__version__,
    }
    (root / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
