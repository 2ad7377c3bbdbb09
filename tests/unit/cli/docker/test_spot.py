"""Who is killed when, and that everybody comes back: without containers, on a clock that is given."""

from __future__ import annotations

from random import Random

import pytest

from shoal.cli.docker.spot import Kill, OpenSteps, SpotPlan, Storm, notice_s, num_victims
from shoal.errors import ShoalError, UserError


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("2.5", 2.5), ("none", 0), ("gke", 15), ("AWS", 120), ("azure", 30)]
)
def test_notices(text: str, seconds: float) -> None:
    assert notice_s(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "601", "gcp", "15s"])
def test_notices_that_nobody_gives(text: str) -> None:
    with pytest.raises(UserError, match=r"give seconds from 0 to 600, or one of none \(0\), gke"):
        notice_s(text)


@pytest.mark.parametrize(
    ("num_actors", "fraction", "expected"),
    [(4, 0.5, 2), (5, 0.5, 3), (3, 0.5, 2), (2, 0.5, 1), (1, 0.5, 0), (0, 0.5, 0), (10, 0.1, 1), (10, 0.3, 3),
     (4, 0.99, 3), (4, 1.0, 4), (1, 1.0, 1), (0, 1.0, 0)],
)  # fmt: skip
def test_a_share_rounded_up_and_never_all_by_chance(num_actors: int, fraction: float, expected: int) -> None:
    assert num_victims(num_actors, fraction) == expected


class Actors:
    """A fleet that does as it is told; `stubborn` ones do not end when asked to."""

    def __init__(self, *names: str, stubborn: tuple[str, ...] = ()) -> None:
        self.running = set(names)
        self.removed: set[str] = set()
        self.broken: set[str] = set()
        self.stubborn = stubborn
        self.calls: list[str] = []

    def terminate(self, actor: str) -> bool:
        self.calls.append(f"term {actor}")
        if actor not in self.stubborn:
            self.running.discard(actor)
        return actor not in self.removed

    def kill(self, actor: str) -> bool:
        self.calls.append(f"kill {actor}")
        was_running = actor in self.running
        self.running.discard(actor)
        return was_running

    def start(self, actor: str) -> bool:
        self.calls.append(f"start {actor}")
        if actor in self.broken:
            raise ShoalError("the disk is full")
        if actor in self.removed:
            return False
        self.running.add(actor)
        return True


def storm(fleet: Actors, *, every: float = 30, fraction: float = 0.5, notice: float = 0) -> Storm:
    def open_steps(actors: object) -> dict[str, OpenSteps]:
        return {"a": OpenSteps(10, 100)}

    return Storm(fleet, SpotPlan(every, fraction, notice, 5), Random(0), open_steps)


def test_half_go_at_once_and_replacements_come() -> None:
    fleet = Actors("a", "b", "c", "d")
    weather = storm(fleet)
    weather.step(100, fleet.running)
    assert len(fleet.running) == 2
    assert weather.num_away == 2
    weather.step(104.9, fleet.running)
    assert len(fleet.running) == 2
    weather.step(105, fleet.running)
    assert len(fleet.running) == 4
    weather.step(129, fleet.running)
    assert (len(weather.kills), weather.num_rounds) == (2, 1)
    weather.step(131, fleet.running)
    assert (len(weather.kills), weather.num_rounds) == (4, 2)
    # A round that comes late does not put off the next.
    weather.step(136, fleet.running)
    weather.step(160, fleet.running)
    assert weather.num_rounds == 3


def test_victims_differ_and_follow_the_seed() -> None:
    def victims(seed: int) -> list[str]:
        fleet = Actors(*"abcdefgh")
        weather = Storm(fleet, SpotPlan(30, 0.25, 0, 5), Random(seed))
        for now in range(0, 300, 5):
            weather.step(now, set(fleet.running))
        return [kill.actor for kill in weather.kills]

    assert victims(1) == victims(1)
    assert victims(1) != victims(2)
    assert len(set(victims(1))) > 4


def test_the_last_one_stays_though_others_are_away() -> None:
    fleet = Actors("a", "b", "c")
    weather = storm(fleet, every=1)
    for now in range(4):
        weather.step(now, set(fleet.running))
        assert len(fleet.running) >= 1
    assert len(weather.kills) == 2
    assert weather.num_rounds == 1, "a round without a victim is none"


def test_with_notice_they_may_go_by_themselves() -> None:
    fleet = Actors("a", "b", stubborn=("b",))
    weather = storm(fleet, fraction=1, notice=15, every=100)
    weather.step(0, {"a", "b"})
    assert sorted(fleet.calls) == ["term a", "term b"]
    assert weather.kills == []
    weather.step(2, {"b"})
    assert weather.kills == [Kill("a", 2, True, OpenSteps(10, 100))]
    weather.step(7, {"b"})
    assert fleet.calls[-1] == "start a"
    weather.step(14, {"a", "b"})
    assert "kill b" not in fleet.calls
    weather.step(15, {"a", "b"})
    assert weather.kills[-1] == Kill("b", 15, False, None)
    weather.step(20, {"a"})
    assert fleet.calls[-1] == "start b"


def test_what_is_lost() -> None:
    assert Kill("a", 0, False, OpenSteps(10, 100)).lost_steps == 110
    assert Kill("a", 0, True, OpenSteps(10, 100)).lost_steps == 10
    assert Kill("a", 0, True, None).lost_steps is None


def test_at_the_end_all_come_back() -> None:
    fleet = Actors("a", "b", "c", "d", stubborn=("a", "b", "c", "d"))
    weather = storm(fleet, notice=15)
    weather.step(0, set(fleet.running))
    weather.step(15, set(fleet.running))
    weather.step(16, set(fleet.running))
    weather.end(17)
    assert fleet.running == {"a", "b", "c", "d"}
    assert weather.num_away == 0
    assert weather.missing == {}


def test_those_that_were_given_notice_come_back_too() -> None:
    fleet = Actors("a", "b", stubborn=("a",))
    weather = storm(fleet, fraction=1, notice=15)
    weather.step(0, {"a", "b"})
    weather.end(1)
    assert fleet.running == {"a", "b"}
    assert {kill.actor: kill.drained for kill in weather.kills} == {"a": False, "b": True}


def test_one_that_does_not_come_back_is_told() -> None:
    fleet = Actors("a", "b", "c")
    weather = storm(fleet, fraction=1)
    weather.step(0, {"a", "b", "c"})
    fleet.removed.add("a")
    fleet.broken.add("b")
    weather.end(1)
    assert weather.missing == {"a": "its container was removed", "b": "the disk is full"}
    assert fleet.running == {"c"}


def test_a_kill_that_fails_leaves_nobody_away_for_ever() -> None:
    class Broken(Actors):
        def kill(self, actor: str) -> bool:
            super().kill(actor)
            raise ShoalError("the engine went away")

    fleet = Broken("a", "b")
    weather = storm(fleet)
    with pytest.raises(ShoalError):
        weather.step(0, {"a", "b"})
    weather.end(1)
    assert fleet.running == {"a", "b"}
