"""What each guard looks for. Pure: steps, values and times come as arguments; `guards` acts on what is found.

Each keeps `finding`: what is wrong at present, or None. Training thread only; no torch.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

from shoal.config.guards import EntropyCollapse, ExplosionGuard, MemoryGrowth, ThroughputStall
from shoal.records import ActionSpec, BoxAction, DiscreteAction

# Learner steps that are judged together by their median: a single wild batch is none of our business.
BLOCK = 16
# Blocks that say what is usual, and those that must be there before anything is judged.
NUM_BLOCKS, MIN_BLOCKS = 64, 4

# Times between batches that say what is usual, and how many of those are long.
_INTERVALS, _LONG = 32, 5

_MEMORY_SAMPLES = 30
_MIB = 1 << 20


@dataclass(frozen=True)
class Finding:
    """What is wrong, and a learner step by which it was not yet."""

    text: str
    before_step: int


class Explosion:
    """A value that is far above its running median for a whole block of steps."""

    def __init__(self, settings: ExplosionGuard, what: str) -> None:
        self._settings = settings
        self._what = what
        self._block: list[float] = []
        self._medians: deque[float] = deque(maxlen=NUM_BLOCKS)
        self.finding: Finding | None = None

    def add(self, step: int, value: float) -> None:
        self._block.append(abs(value))
        if len(self._block) < BLOCK:
            return
        median = statistics.median(self._block)
        self._block.clear()
        if len(self._medians) >= MIN_BLOCKS:
            usual = statistics.median(self._medians)
            limit = max(self._settings.factor * usual, self._settings.at_least)
            text = (
                f"the {self._what} is {median:.3g} in the median of the last {BLOCK} learner steps, usual is "
                f"{usual:.3g} (limit {limit:.3g})"
            )
            # The block before may have been on the way already.
            self.finding = Finding(text, max(0, step - 2 * BLOCK)) if median > limit else None
        # A level that stays becomes the usual one.
        self._medians.append(median)


class Collapse:
    """Entropy that has been next to nothing for many steps."""

    def __init__(self, settings: EntropyCollapse, action: ActionSpec) -> None:
        self._settings = settings
        # The largest there can be, so that a learner that comes back after the collapse sees it too. That of
        # continuous actions may be any number: the largest so far.
        self._num_elements = math.prod(action.shape) if isinstance(action, BoxAction) else None
        self._largest = _largest_entropy(action)
        self._low_since: int | None = None
        self.finding: Finding | None = None

    def add(self, step: int, entropy: float) -> None:
        self._largest = max(self._largest, entropy)
        part = self._part(entropy)
        if part >= self._settings.fraction:
            self._low_since = self.finding = None
            return
        if self._low_since is None:
            self._low_since = step
        lasted = step - self._low_since
        if lasted >= self._settings.for_steps:
            text = (
                f"the policy's entropy {entropy:.3g} has been under {100 * self._settings.fraction:g} % of "
                f"{self._largest:.3g} for {lasted} learner steps (limit {self._settings.for_steps})"
            )
            self.finding = Finding(text, max(0, self._low_since - 1))

    def _part(self, entropy: float) -> float:
        if self._num_elements is not None:
            # exp(entropy) is a volume: this is the mean ratio of the widths.
            return math.exp(min(0.0, (entropy - self._largest) / max(1, self._num_elements)))
        return entropy / self._largest if self._largest > 0 else 1.0


def _largest_entropy(action: ActionSpec) -> float:
    if isinstance(action, BoxAction):
        return -math.inf
    return sum(math.log(n) for n in ((action.n,) if isinstance(action, DiscreteAction) else action.nvec))


class Stall:
    """No batch for long, or far fewer per second than there were.

    What is long depends on what is usual: a batch of slow environments may take minutes. Nothing counts
    before the second batch.
    """

    def __init__(self, settings: ThroughputStall) -> None:
        self._settings = settings
        self._last_batch: float | None = None
        self._intervals: deque[float] = deque(maxlen=_INTERVALS)
        self._window_start = 0.0
        self._num_batches = 0
        self._best = 0.0
        self._slow: Finding | None = None
        self.finding: Finding | None = None

    def batch(self, step: int, now: float) -> None:
        """A batch is there."""
        if self._last_batch is None:
            self._window_start = now
        else:
            self._num_batches += 1
            self._intervals.append(now - self._last_batch)
        self._last_batch = now
        self.look(step, now)

    def look(self, step: int, now: float) -> None:
        if self._last_batch is None or not self._intervals:
            return
        waited, limit = now - self._last_batch, self._settings.no_batch_s
        window = self._settings.window_s
        if waited > limit or now - self._window_start >= window:
            # Only now: a median is not for every step.
            usual = statistics.median(self._intervals)
            limit, window = max(limit, _LONG * usual), max(window, 2 * _LONG * usual)
        if now - self._window_start >= window:
            self._close_window(step, now)
        text = f"no batch has come for {waited:.0f} s (limit {limit:.0f} s)"
        self.finding = Finding(text, step) if waited > limit else self._slow

    def _close_window(self, step: int, now: float) -> None:
        rate = self._num_batches / (now - self._window_start)
        self._window_start, self._num_batches = now, 0
        least = self._settings.fraction * self._best
        text = (
            f"training makes {rate:.3g} learner steps/s, it made up to {self._best:.3g} (limit {least:.3g})"
        )
        self._slow = Finding(text, step) if rate < least else None
        self._best = max(self._best, rate)


class Growth:
    """Memory that grows in both halves of the time that is looked at: a single jump is no leak."""

    def __init__(self, settings: MemoryGrowth) -> None:
        self._settings = settings
        self._every_s = settings.window_s / _MEMORY_SAMPLES
        self._samples: deque[tuple[float, int]] = deque(maxlen=_MEMORY_SAMPLES + 1)
        self._not_before: float | None = None
        self.finding: Finding | None = None

    def is_due(self, now: float) -> bool:
        """Looking costs a system call: only every now and then. The first call starts the warm-up."""
        if self._not_before is None:
            self._not_before = now + self._settings.warmup_s
        return now >= self._not_before

    def add(self, step: int, now: float, num_bytes: int) -> None:
        self._not_before = now + self._every_s
        self._samples.append((now, num_bytes))
        self.finding = self._too_large(step, num_bytes) or self._growing(step)

    def _too_large(self, step: int, num_bytes: int) -> Finding | None:
        most = self._settings.max_mib
        if most is None or num_bytes <= most * _MIB:
            return None
        return Finding(f"this process has {num_bytes / _MIB:.0f} MiB of memory (limit {most:g} MiB)", step)

    def _growing(self, step: int) -> Finding | None:
        if len(self._samples) <= _MEMORY_SAMPLES:
            return None
        first, middle, last = (self._samples[i] for i in (0, _MEMORY_SAMPLES // 2, _MEMORY_SAMPLES))
        slope = min(_slope(first, middle), _slope(middle, last))
        if slope <= self._settings.mib_per_minute:
            return None
        text = (
            f"this process's memory grows by {slope:.0f} MiB/min and is at {last[1] / _MIB:.0f} MiB (limit "
            f"{self._settings.mib_per_minute:g} MiB/min over {self._settings.window_s:g} s)"
        )
        return Finding(text, step)


def _slope(start: tuple[float, int], end: tuple[float, int]) -> float:
    """MiB per minute."""
    return (end[1] - start[1]) / _MIB / (end[0] - start[0]) * 60.0
