"""Numbers for sessions, and a bound on the environments of all of them: a server's memory follows from it.

Shared by the engines of all policies. Event loop only.
"""

from __future__ import annotations

from shoal.errors import UnavailableError


class Seats:
    """Taken when a stream opens, given back when it ends."""

    def __init__(self, max_envs: int) -> None:
        self._max_envs = max_envs
        self._num_envs = 0
        self._next_number = 0

    def take(self, num_envs: int) -> int:
        """A number for the session. Raises UnavailableError if there is no room: actors then ask elsewhere,
        and here again later."""
        if self._num_envs + num_envs > self._max_envs:
            raise UnavailableError(
                f"no room for {num_envs} environments: {self._num_envs} of {self._max_envs} are taken "
                "(inference.max_envs): add replicas or raise the limit"
            )
        self._num_envs += num_envs
        number = self._next_number
        self._next_number += 1
        return number

    def give_back(self, num_envs: int) -> None:
        self._num_envs -= num_envs
