"""How far the run has come: counters and the window of episode returns. Saved in every checkpoint.

Plain data, owned by the training thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from services.learner.returns import Returns, standard_errors_above
from shoal.config.learner import StopSection
from shoal.records import Episode

# Episodes that a mean return is over; with fewer, nothing is reached yet.
WINDOW = 100
# Most episodes that are compared with the untrained policy's: where chance decides most of a return, the
# difference of a hundred says nothing.
MAX_COMPARED = 1000

# Lags above this are counted as this: versions come off a socket, and the count is an array.
MAX_LAG = 4096


@dataclass
class Best:
    """The highest mean return of 100 episodes, and the learner step that it was reached at."""

    returns: Returns
    learner_step: int


@dataclass
class Progress:
    """Totals over all lives of the learner."""

    learner_steps: int = 0
    env_steps: int = 0
    # Transitions trained on, those that were sampled several times as often.
    trained_steps: int = 0
    num_episodes: int = 0
    policy_version: int = -1
    seconds: float = 0.0
    episodes: deque[Episode] = field(default_factory=lambda: deque(maxlen=WINDOW))
    # Returns of the last episodes.
    compared: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_COMPARED))
    # What a policy that has learned nothing returns: random play, known from the start; or the episodes that
    # began with the version from before the first learner step.
    untrained_version: int = -1
    untrained: Returns = field(default_factory=Returns)
    best: Best | None = None

    def count_step(self, trained_steps: int) -> None:
        """A batch was trained on."""
        self.learner_steps += 1
        self.trained_steps += trained_steps

    def count_data(self, env_steps: int, episodes: Iterable[Episode]) -> None:
        """What has come: in a queue's batch itself, or into the table since the batch before."""
        self.env_steps += env_steps
        before = self.num_episodes
        for episode in episodes:
            self.num_episodes += 1
            self.episodes.append(episode)
            self.compared.append(episode.episode_return)
            if episode.first_version == self.untrained_version >= 0:
                self.untrained.add(episode.episode_return)
        if self.num_episodes > before and len(self.episodes) == WINDOW:
            self._keep_best()

    def _keep_best(self) -> None:
        recent = self.recent
        if self.best is None or recent.mean > self.best.returns.mean:
            self.best = Best(recent, self.learner_steps)

    @property
    def recent(self) -> Returns:
        """Of the last episodes, up to 100 of them."""
        return Returns.of(episode.episode_return for episode in self.episodes)

    @property
    def knows_untrained(self) -> bool:
        """From the start: no episode of the run adds to it."""
        return self.untrained.num > 0 and self.untrained_version < 0

    @property
    def num_trained_episodes(self) -> int:
        return self.num_episodes - (0 if self.knows_untrained else self.untrained.num)

    @property
    def untrained_return(self) -> float | None:
        """Mean return of the untrained policy; None before its first episode has ended."""
        return self.untrained.mean if self.untrained.num else None

    def describe_return(self) -> str:
        """For the log, beside the untrained policy's: `475.6 (untrained 22.1)`."""
        untrained = "" if self.untrained_return is None else f" (untrained {self.untrained_return:.1f})"
        return "-" if self.mean_return is None else f"{self.mean_return:.1f}{untrained}"

    @property
    def newest(self) -> Returns:
        """What is compared with the untrained policy: the newer half of the trained episodes, up to 100.

        A run of few episodes would otherwise be judged by those from before it had learned. Up to 1000 if
        those are further above, in standard errors: chance may decide most of a single return.
        """
        num = min(len(self.compared), (self.num_trained_episodes + 1) // 2)
        several = (self._last(min(num, WINDOW)), self._last(num))
        return max(several, key=lambda returns: standard_errors_above(returns, self.untrained) or 0.0)

    def _last(self, num: int) -> Returns:
        return Returns.of(islice(self.compared, len(self.compared) - num, None))

    def has_learned(self, standard_errors: float) -> bool | None:
        """Whether the return is above the untrained policy's by more than chance; None: not known."""
        above = standard_errors_above(self.newest, self.untrained)
        return None if above is None else above >= standard_errors

    @property
    def mean_return(self) -> float | None:
        """Over the last episodes, up to 100 of them; None before the first."""
        if not self.episodes:
            return None
        return sum(episode.episode_return for episode in self.episodes) / len(self.episodes)

    @property
    def mean_length(self) -> float | None:
        if not self.episodes:
            return None
        return sum(episode.num_steps for episode in self.episodes) / len(self.episodes)

    def reason_to_stop(self, stop: StopSection) -> str | None:
        """Which stop condition is met; minutes are for whoever started the learner."""
        if stop.until_return is not None and len(self.episodes) >= WINDOW:
            mean = self.mean_return
            if mean is not None and mean >= stop.until_return:
                return "until_return"
        if stop.steps is not None and self.env_steps >= stop.steps:
            return "steps"
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "learner_steps": self.learner_steps,
            "env_steps": self.env_steps,
            "trained_steps": self.trained_steps,
            "num_episodes": self.num_episodes,
            "policy_version": self.policy_version,
            "seconds": self.seconds,
            "episodes": [[episode.episode_return, episode.num_steps] for episode in self.episodes],
            "compared": list(self.compared),
            "untrained_version": self.untrained_version,
            "untrained": self.untrained.to_json(),
            "best": None
            if self.best is None
            else {"returns": self.best.returns.to_json(), "learner_step": self.best.learner_step},
        }

    @staticmethod
    def from_json(tree: dict[str, Any]) -> Progress:
        """Raises KeyError, TypeError or ValueError if it was written by something else.

        Checkpoints of earlier versions have neither the untrained policy's returns nor the best, and of what
        is compared with them no more than the last episodes.
        """
        best = tree.get("best")
        compared = tree.get("compared", [episode_return for episode_return, _ in tree["episodes"]])
        return Progress(
            learner_steps=int(tree["learner_steps"]),
            env_steps=int(tree["env_steps"]),
            trained_steps=int(tree["trained_steps"]),
            num_episodes=int(tree["num_episodes"]),
            policy_version=int(tree["policy_version"]),
            seconds=float(tree["seconds"]),
            episodes=deque((Episode(float(r), int(n)) for r, n in tree["episodes"]), maxlen=WINDOW),
            compared=deque(map(float, compared), maxlen=MAX_COMPARED),
            untrained_version=int(tree.get("untrained_version", -1)),
            untrained=Returns.from_json(tree.get("untrained", (0, 0.0, 0.0))),
            best=None
            if best is None
            else Best(Returns.from_json(best["returns"]), int(best["learner_step"])),
        )


@dataclass(frozen=True)
class Lag:
    """Published versions between acting and training, over the transitions of one batch."""

    counts: np.ndarray
    mean: float
    p95: int
    max: int

    @staticmethod
    def of(current_version: int, versions: np.ndarray) -> Lag:
        """`counts[i]` transitions were i versions behind."""
        if not versions.size:
            return Lag(np.zeros(1, np.int64), 0.0, 0, 0)
        counts = np.bincount(np.clip(current_version - versions, 0, MAX_LAG))
        cumulative = np.cumsum(counts)
        total = int(cumulative[-1])
        return Lag(
            counts=counts,
            mean=float(np.arange(len(counts)) @ counts) / total,
            p95=int(np.searchsorted(cumulative, 0.95 * total)),
            max=len(counts) - 1,
        )
