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


def kill(policy: RestartPolicy, lived_s: float) -> Restart | GiveUp:
    return policy.crashed(lived_s, code=-9)


def fail(policy: RestartPolicy, lived_s: float) -> Restart | GiveUp:
    return policy.crashed(lived_s, code=1)


def test_delay_doubles_up_to_five_seconds() -> None:
    policy, _ = started()
    delays = [kill(policy, lived_s=1.0) for _ in range(7)]
    assert delays == [Restart(s) for s in (0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0)]


def test_a_healthy_life_resets_the_delay() -> None:
    policy, _ = started()
    fail(policy, lived_s=1.0)
    fail(policy, lived_s=1.0)
    assert fail(policy, lived_s=60.0) == Restart(0.2)


def test_one_crash_more_than_allowed_gives_up() -> None:
    policy, clock = started(max_restarts=3)
    for _ in range(3):
        assert isinstance(fail(policy, lived_s=30.0), Restart)
        clock.now += 100
    decision = fail(policy, lived_s=30.0)
    assert decision == GiveUp("crashed 4 times in ten minutes (launch.max_restarts is 3)")


def test_crashes_older_than_ten_minutes_do_not_count() -> None:
    policy, clock = started(max_restarts=1)
    for _ in range(50):
        assert isinstance(fail(policy, lived_s=600.0), Restart)
        clock.now += 600


def test_no_restarts_allowed() -> None:
    policy, _ = started(max_restarts=0)
    assert isinstance(fail(policy, lived_s=1000.0), GiveUp)


def test_what_never_came_up_is_not_tried_for_long() -> None:
    policy = RestartPolicy(20, Clock())
    assert isinstance(fail(policy, 0.1), Restart)
    assert isinstance(fail(policy, 0.1), Restart)
    assert fail(policy, 0.1) == GiveUp("crashed 3 times before it came up")


def test_what_always_fails_soon_is_given_up() -> None:
    policy, _ = started()
    assert all(isinstance(fail(policy, 5.0), Restart) for _ in range(4))
    assert fail(policy, 5.0) == GiveUp("crashed 5 times within 10 s of its start")


def test_a_healthy_life_or_a_signal_is_no_failure() -> None:
    policy, _ = started()
    for _ in range(4):
        assert isinstance(fail(policy, 5.0), Restart)
    assert isinstance(kill(policy, 5.0), Restart)
    assert isinstance(fail(policy, 11.0), Restart)
    for _ in range(4):
        assert isinstance(fail(policy, 5.0), Restart)
