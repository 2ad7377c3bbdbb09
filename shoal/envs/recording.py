"""A wrapper that hands every picture of an environment to whoever films it.

For environments of Gymnasium and parallel ones of PettingZoo alike: everything but `reset` and `step` is
theirs. Put around one environment by `shoal.cli.video`; the thread is that of the caller.
"""

from __future__ import annotations

from typing import Any, Protocol


class Camera(Protocol):
    """Takes what `render` gave, or raised, for each observation that was shown."""

    def begin_episode(self, env: Any) -> None: ...

    def take(self, picture: Any) -> None: ...

    def fail(self, error: Exception) -> None: ...


class Filmed:
    """`env` with `camera` on it."""

    def __init__(self, env: Any, camera: Camera) -> None:
        self._env = env
        self._camera = camera

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **arguments: Any) -> Any:
        shown = self._env.reset(**arguments)
        self._camera.begin_episode(self._env)
        self._render()
        return shown

    def step(self, action: Any) -> Any:
        shown = self._env.step(action)
        self._render()
        return shown

    def _render(self) -> None:
        try:
            self._camera.take(self._env.render())
        except Exception as error:  # the environment's own code: not to be taken for a fault in its steps
            self._camera.fail(error)
