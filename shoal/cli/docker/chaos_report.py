"""What a storm has cost, in figures and in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.cli.docker.measures import Window
from shoal.cli.docker.spot import Kill, SpotPlan


@dataclass(frozen=True)
class ChaosReport:
    """Of a storm with a calm stretch on either side. `ended`: why it is over before its time, if it is.

    `after` is None then: there was no time for it.
    """

    plan: SpotPlan
    num_actors: int
    before: Window
    chaos: Window
    after: Window | None
    kills: Sequence[Kill]
    num_rounds: int
    learner_restarts: int
    missing: Sequence[str] = ()
    ended: str = ""

    @property
    def kept(self) -> float | None:
        """Share of the learner's speed; None if there was none to keep.

        Compared with both sides: machines get faster and slower by themselves, most of them in one direction
        for minutes.
        """
        calm = [window.learner_steps_per_s for window in (self.before, self.after) if window is not None]
        speed = sum(calm) / len(calm)
        return self.chaos.learner_steps_per_s / speed if speed > 0 else None

    @property
    def lost_steps(self) -> float | None:
        """An estimate; kills of which nothing is known count as the mean of the others."""
        known = [kill.lost_steps for kill in self.kills if kill.lost_steps is not None]
        if not self.kills:
            return 0.0
        return sum(known) / len(known) * len(self.kills) if known else None

    @property
    def lost_share(self) -> float | None:
        """Of all steps that actors made while it lasted."""
        lost, collected = self.lost_steps, self.chaos.collected_steps
        return lost / collected if lost is not None and collected else None

    def keeps(self, min_kept: float | None) -> bool:
        """Whether it is good enough for who asks for something."""
        if min_kept is None:
            return True
        return self.learner_restarts == 0 and self.kept is not None and self.kept >= min_kept

    def record(self) -> dict[str, Any]:
        """For a file."""
        return {
            "actors": self.num_actors,
            "every_s": self.plan.every_s,
            "fraction": self.plan.fraction,
            "notice_s": self.plan.notice_s,
            "back_after_s": self.plan.back_after_s,
            "before": _record(self.before),
            "chaos": _record(self.chaos),
            "after": None if self.after is None else _record(self.after),
            "kept": self.kept,
            "rounds": self.num_rounds,
            "kills": len(self.kills),
            "drained": sum(kill.drained for kill in self.kills),
            "learner_restarts": self.learner_restarts,
            "lost_steps_estimate": self.lost_steps,
            "lost_share_estimate": self.lost_share,
            "not_back": list(self.missing),
            "ended_early": self.ended or None,
        }

    def lines(self) -> list[str]:
        drained = sum(kill.drained for kill in self.kills)
        windows = [self.before, self.chaos] + ([] if self.after is None else [self.after])
        rows = [
            ("", ["before", "chaos", "after"][: len(windows)]),
            ("measured", [f"{window.seconds:.0f} s" for window in windows]),
            ("learner, env steps/s", [_whole(window.learner_steps_per_s) for window in windows]),
            ("actors, env steps/s", [_whole(window.actor_steps_per_s) for window in windows]),
            ("policy lag, versions", [_number(window.lag_mean) for window in windows]),
            ("policy lag, p95", [_number(window.lag_p95) for window in windows]),
        ]
        share = "" if self.lost_share is None else f", {100 * self.lost_share:.2g} % of what was collected"
        lost = "unknown" if self.lost_steps is None else f"about {self.lost_steps:,.0f}{share}"
        return [
            *(f"  {name:<22}" + "".join(f"{cell:>12}" for cell in cells) for name, cells in rows),
            f"  kills: {len(self.kills)} in {_rounds(self.num_rounds)}"
            + (f", {drained} of them drained within the notice" if self.plan.notice_s else ""),
            f"  steps lost: {lost}",
            f"  learner restarts: {self.learner_restarts}",
            *(f"  not back: {text}" for text in self.missing),
            self.sentence(),
        ]

    def sentence(self) -> str:
        if not self.kills:
            return "Nothing was killed, so nothing is shown."
        ended = f" {self.ended}" if self.ended else ""
        if self.kept is None:
            return f"The learner did not train in the calm, so there is no speed to compare with.{ended}"
        restarts = (
            "never restarted"
            if self.learner_restarts == 0
            else f"restarted {self.learner_restarts} times, which kills of actors must not cause"
        )
        return (
            f"The learner kept {100 * self.kept:.0f} % of its speed while {len(self.kills)} actors were "
            f"killed, and {restarts}.{ended}"
        )


def _record(window: Window) -> dict[str, Any]:
    return {
        "seconds": round(window.seconds, 3),
        "learner_steps_per_s": window.learner_steps_per_s,
        "actor_steps_per_s": window.actor_steps_per_s,
        "collected_steps": window.collected_steps,
        "policy_lag_mean": window.lag_mean,
        "policy_lag_p95": window.lag_p95,
    }


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
