"""What a storm has cost, in figures and in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.cli.docker.measures import Window
from shoal.cli.docker.spot import Kill, SpotPlan


@dataclass(frozen=True)
class ChaosReport:
    """`ended`: why it is over before its time, if it is."""

    plan: SpotPlan
    num_actors: int
    calm: Window
    chaos: Window
    kills: Sequence[Kill]
    num_rounds: int
    learner_restarts: int
    missing: Sequence[str] = ()
    ended: str = ""

    @property
    def kept(self) -> float | None:
        """Share of the learner's speed; None if there was none to keep."""
        calm = self.calm.learner_steps_per_s
        return self.chaos.learner_steps_per_s / calm if calm > 0 else None

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
            "calm": _record(self.calm),
            "chaos": _record(self.chaos),
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
        calm, chaos = self.calm, self.chaos
        drained = sum(kill.drained for kill in self.kills)
        rows = [
            ("", "calm", "chaos"),
            ("measured", f"{calm.seconds:.0f} s", f"{chaos.seconds:.0f} s"),
            ("learner, env steps/s", _whole(calm.learner_steps_per_s), _whole(chaos.learner_steps_per_s)),
            ("actors, env steps/s", _whole(calm.actor_steps_per_s), _whole(chaos.actor_steps_per_s)),
            ("policy lag, versions", _number(calm.lag_mean), _number(chaos.lag_mean)),
            ("policy lag, p95", _number(calm.lag_p95), _number(chaos.lag_p95)),
        ]
        share = "" if self.lost_share is None else f", {100 * self.lost_share:.2g} % of what was collected"
        lost = "unknown" if self.lost_steps is None else f"about {self.lost_steps:,.0f}{share}"
        return [
            *(f"  {name:<22}{left:>12}{right:>12}".rstrip() for name, left, right in rows),
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
            return f"The learner did not train before the kills, so there is no speed to compare with.{ended}"
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
