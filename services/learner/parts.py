"""What belongs to one policy in the learner, before torch is there. Built by `__main__`, used by `session`.

One policy is one independent training: its own spec, weights, versions, checkpoints, data and metrics.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from services.learner.checkpoint import CheckpointStore
from services.learner.files import DirectoryLock
from services.learner.guard_stops import show_guard_stops
from services.learner.metrics import LearnerMetrics, PolicyMetrics
from services.learner.publisher import WeightsPublisher
from services.learner.result import clear_result
from services.learner.versions import VersionCounter
from shoal.config import Config
from shoal.config.policies import PolicyPlace, places_at_rank, policy_places
from shoal.errors import UserError


@dataclass(frozen=True)
class Parts:
    """Of one policy."""

    place: PolicyPlace
    publisher: WeightsPublisher
    versions: VersionCounter
    store: CheckpointStore
    metrics: PolicyMetrics


def build_parts(config: Config, metrics: LearnerMetrics, rank: int = 0) -> tuple[Parts, ...]:
    """Of all policies; on the event loop, once `take_run_dir` has made their directories."""
    return tuple(_parts(config, place, metrics) for place in places_at_rank(config, rank))


def _parts(config: Config, place: PolicyPlace, metrics: LearnerMetrics) -> Parts:
    versions = VersionCounter(place.dir / "policy_version")
    publisher = WeightsPublisher(versions, config.policy)
    of_policy = metrics.of(place.name)
    show_guard_stops(place.dir, of_policy)
    return Parts(place, publisher, versions, _store(config, place), of_policy)


def take_run_dir(config: Config) -> DirectoryLock:
    """Make sure that the run's directory is writable and ours alone. Blocking. Raises UserError."""
    run_dir = config.run.dir
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        # Before anything is cleared away: the temporary files of a running learner are not leftovers.
        with contextlib.ExitStack() as stack:
            lock = DirectoryLock(run_dir)
            stack.callback(lock.release)
            _check_kind_of_run(config)
            for place in policy_places(config):
                _store(config, place).prepare()
                clear_result(place.dir)
            clear_result(run_dir)
            stack.pop_all()
            return lock
    except OSError as error:
        raise UserError(
            f"cannot write to {error.filename}: {error.strerror}. Make room there or make it "
            "writable, or give a new run another run.dir"
        ) from None


def _store(config: Config, place: PolicyPlace) -> CheckpointStore:
    settings = config.learner
    return CheckpointStore(place.dir / "checkpoints", settings.keep_checkpoints, settings.keep_best)


def _check_kind_of_run(config: Config) -> None:
    """One policy has its checkpoints elsewhere than several have: none would be found, and all begin anew."""
    run_dir = config.run.dir
    found = next(run_dir.glob(f"{'' if config.env.policies else 'policies/*/'}checkpoints/[0-9]*"), None)
    if found is not None:
        was, now = ("one policy", "several") if config.env.policies else ("several policies", "one")
        raise UserError(
            f"the run in {run_dir} has {was} and env.policies asks for {now}: its checkpoints, such as "
            f"{found}, would not be used. Set env.policies as it was, or use another run.dir"
        )
