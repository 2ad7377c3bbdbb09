"""Growth of counters over restarts, and the report that is made of it: worked by hand."""

from __future__ import annotations

import json
import math

import pytest

from shoal.cli.docker.chaos_report import ChaosReport
from shoal.cli.docker.chaos_session import LearnerWatch
from shoal.cli.docker.measures import Window, growth, mean, measure, open_steps, rate
from shoal.cli.docker.prometheus import Series, check_address
from shoal.cli.docker.spot import Kill, OpenSteps, SpotPlan
from shoal.errors import UserError
from tests.unit.cli.docker.fleet import container


def series(*samples: tuple[float, float], **labels: str) -> Series:
    return Series(labels, samples)


def test_a_counter_that_goes_on() -> None:
    assert growth(series((0, 100), (5, 150), (10, 150), (15, 210)), 0) == 110


def test_a_counter_that_began_again_at_zero() -> None:
    assert growth(series((0, 100), (5, 150), (10, 20), (15, 40)), 0) == 50 + 20 + 20


def test_a_counter_that_came_later_counts_from_zero() -> None:
    late = series((20, 30), (25, 50))
    assert growth(late, 0) == 50
    assert growth(late, 15) == 20, "one scrape late is no new life"
    assert growth(series((20, 30)), 0) == 0, "one sample says nothing"


def test_rates() -> None:
    assert rate([]) is None
    assert rate([series((0, 5))]) is None
    assert rate([series((0, 100), (10, 300)), series((0, 0), (10, 50), policy="b")]) == 25
    # A learner that came back at another address.
    assert rate([series((0, 0), (5, 100)), series((15, 10), (20, 60))]) == 160 / 20


def test_means_leave_out_what_is_no_number() -> None:
    assert mean([series((0, 1), (5, math.nan), (10, 3))]) == 2
    assert mean([]) is None


def test_open_steps_by_host() -> None:
    found = open_steps(
        [
            series((0, 10), instance="172.18.0.2:9464", state="recording"),
            series((0, 640), instance="172.18.0.2:9464", state="unacked"),
            series((0, 7), instance="172.18.0.3:9464", state="recording"),
        ]
    )
    assert found == {"172.18.0.2": OpenSteps(10, 640), "172.18.0.3": OpenSteps(7, 0)}


class Server:
    address = "127.0.0.1:9090"

    def __init__(self, **found: list[Series]) -> None:
        self.found = found

    def now(self, query: str) -> list[Series]:
        raise NotImplementedError

    def between(self, selector: str, start: float, end: float) -> list[Series]:
        return self.found.get(selector.partition("{")[0], [])


def test_a_window() -> None:
    server = Server(
        shoal_learner_env_steps_total=[series((0, 0), (10, 1000))],
        shoal_actor_env_steps_total=[series((0, 0), (10, 600)), series((0, 0), (10, 500))],
        shoal_learner_policy_lag_mean=[series((0, 2), (10, 4))],
    )
    assert measure(server, 0, 12) == Window(12, 100, 110, 3, None)
    assert measure(server, 0, 12).collected_steps == 1320


def test_a_learner_that_is_not_scraped() -> None:
    with pytest.raises(UserError, match="has 0 samples of shoal_learner_env_steps_total from 12 s"):
        measure(Server(), 0, 12)


PLAN = SpotPlan(30, 0.5, 0, 5)
BEFORE = Window(30, 1200, 1300, 1.5, 3)
AFTER = Window(30, 800, 900, 1.5, 3)
CHAOS = Window(300, 900, 1000, 1.7, 4)


def report(kills: int = 4, **changes: object) -> ChaosReport:
    gone = [Kill(f"actor-{index}", 0, False, OpenSteps(50, 250)) for index in range(kills)]
    values: dict[str, object] = {
        "plan": PLAN, "num_actors": 4, "before": BEFORE, "chaos": CHAOS, "after": AFTER, "kills": gone,
        "num_rounds": 2, "learner_restarts": 0,
    }  # fmt: skip
    return ChaosReport(**(values | changes))  # type: ignore[arg-type]


def test_what_was_kept_and_lost() -> None:
    found = report()
    assert found.kept == 0.9, "of the mean of before and after"
    assert report(after=None).kept == 0.75, "of what there is"
    assert found.lost_steps == 1200
    assert found.lost_share == 1200 / 300_000
    assert found.keeps(None)
    assert found.keeps(0.9)
    assert not found.keeps(0.91)
    assert not report(learner_restarts=1).keeps(0.5), "a learner that restarts has not kept going"
    assert report(learner_restarts=1).keeps(None)


def test_kills_without_a_figure_count_as_the_others_do() -> None:
    known = OpenSteps(100, 200)
    kills = [Kill("a", 0, False, known), Kill("b", 0, True, known), Kill("c", 0, False, None)]
    assert ChaosReport(PLAN, 4, BEFORE, CHAOS, AFTER, kills, 1, 0).lost_steps == (300 + 100) / 2 * 3
    assert ChaosReport(PLAN, 4, BEFORE, CHAOS, AFTER, kills[2:], 1, 0).lost_steps is None
    assert ChaosReport(PLAN, 4, BEFORE, CHAOS, AFTER, [], 0, 0).lost_steps == 0


def test_the_report_is_plain() -> None:
    lines = report().lines()
    assert lines[-1] == "The learner kept 90 % of its speed while 4 actors were killed, and never restarted."
    text = "\n".join(lines)
    for part in ("1,200", "900", "800", "kills: 4 in 2 rounds", "about 1,200, 0.4 %", "learner restarts: 0"):
        assert part in text
    assert "restarted 2 times" in report(learner_restarts=2).sentence()
    assert report(ended="You ended it.").sentence().endswith("You ended it.")
    assert "Nothing was killed" in report(kills=0).sentence()
    assert "after" not in "".join(report(after=None).lines())
    idle = Window(30, 0, None, None, None)
    unknown = report(chaos=Window(300, 900, None, None, None), before=idle, after=idle)
    assert (unknown.kept, unknown.lost_share, unknown.keeps(0.1)) == (None, None, False)
    assert "no speed to compare with" in unknown.sentence()
    assert unknown.lines()


def test_the_record_is_json() -> None:
    found = json.loads(json.dumps(report().record()))
    assert (found["kept"], found["kills"], found["learner_restarts"]) == (0.9, 4, 0)
    assert found["before"]["learner_steps_per_s"] == 1200
    assert found["after"]["learner_steps_per_s"] == 800
    assert report(after=None).record()["after"] is None
    assert found["ended_early"] is None


def test_lives_of_the_learner() -> None:
    watch = LearnerWatch()
    assert watch.look([container("learner"), container("actor")]) is None
    watch.look([container("learner"), container("actor", StartedAt="2026-11-17T09:05:00Z")])
    assert watch.num_restarts == 0
    watch.look([])
    watch.look([container("learner", StartedAt="2026-11-17T09:05:00Z")])
    assert watch.num_restarts == 1
    ended = watch.look([container("learner", StartedAt="2026-11-17T09:05:00Z", Status="exited")])
    assert ended is not None
    assert watch.num_restarts == 1


@pytest.mark.parametrize("address", ["", "9090", ":9090", "host", "host:0", "host:70000", "host:http"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(UserError, match="write it as host:port"):
        check_address(address)


def test_addresses() -> None:
    assert check_address("127.0.0.1:9090") == ("127.0.0.1", 9090)
    assert check_address("http://prom.example:80/") == ("prom.example", 80)
    assert check_address("[::1]:9090") == ("::1", 9090)
