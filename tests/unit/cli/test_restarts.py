"""Back-off and giving up, on a fake clock."""

from __future__ import annotations

from shoal.cli.restarts import GiveUp, Restart, RestartPolicy


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def started(max_restarts: int = 20) -> tuple[RestartPolicy, Clock]:
    clock = Clock()
    policy = RestartPolicy(max_restarts, clock)
    policy.came_up()
    return policy, clock


def test_delay_doubles_up_to_five_seconds() -> None:
    policy, _ = started()
    delays = [policy.crashed(lived_s=1.0) for _ in range(7)]
    assert delays == [Restart(s) for s in (0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0)]


def test_a_healthy_life_resets_the_delay() -> None:
    policy, _ = started()
    policy.crashed(lived_s=1.0)
    policy.crashed(lived_s=1.0)
    assert policy.crashed(lived_s=60.0) == Restart(0.2)


def test_one_crash_more_than_allowed_gives_up() -> None:
    policy, clock = started(max_restarts=3)
    for _ in range(3):
        assert isinstance(policy.crashed(lived_s=30.0), Restart)
        clock.now += 100
    decision = policy.crashed(lived_s=30.0)
    assert decision == GiveUp("crashed 4 times in ten minutes (launch.max_restarts is 3)")


def test_crashes_older_than_ten_minutes_do_not_count() -> None:
    policy, clock = started(max_restarts=1)
    for _ in range(50):
        assert isinstance(policy.crashed(lived_s=600.0), Restart)
        clock.now += 600


def test_no_restarts_allowed() -> None:
    policy, _ = started(max_restarts=0)
    assert isinstance(policy.crashed(lived_s=1000.0), GiveUp)


def test_what_never_came_up_is_not_tried_for_long() -> None:
    policy = RestartPolicy(20, Clock())
    assert isinstance(policy.crashed(0.1), Restart)
    assert isinstance(policy.crashed(0.1), Restart)
    assert policy.crashed(0.1) == GiveUp("crashed 3 times before it came up")
