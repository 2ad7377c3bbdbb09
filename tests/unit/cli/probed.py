"""Environments that `shoal train` looks at in a process of its own: by their import path."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Plain(gym.Env[np.ndarray, np.ndarray]):
    """A table of numbers, and an action of four switches."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2, 3), np.float32)
        self.action_space: spaces.Space[Any] = spaces.MultiBinary(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros((2, 3), np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros((2, 3), np.float32), 0.0, False, False, {}


class Short(Plain):
    """An episode is a step, worth a point."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros((2, 3), np.float32), 1.0, True, False, {}


class Unbounded(Short):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Falling(Plain):
    """It breaks when it is stepped."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        os._exit(7)


class Stuck(Plain):
    """It hangs when it is stepped."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        threading.Event().wait()
        raise AssertionError


class Talkative(Plain):
    """On both of its ways: what it prints is nobody's answer."""

    def __init__(self) -> None:
        super().__init__()
        print('{"error": "not this one"}', flush=True)
        os.write(1, b"straight to the descriptor\n" * 100_000)
        print("a warning", file=sys.stderr)


class Raising(Plain):
    def __init__(self) -> None:
        raise RuntimeError("no licence for\nthe simulator")


class Exiting(Plain):
    """As a simulator that ends the process it is in."""

    def __init__(self) -> None:
        print("fatal: no display", file=sys.stderr, flush=True)
        os._exit(7)


class Killed(Plain):
    def __init__(self) -> None:
        os.abort()
