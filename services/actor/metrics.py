"""What an actor measures about itself. Made once per process; updated on the event loop, once per unroll."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry, Counter, Gauge

from shoal.clients.replay_writer import WriterStats
from shoal.metrics import Phases
from shoal.records import Episode

# Episodes that the mean return is taken over.
MEAN_OVER = 100

PHASES = ("env_step", "wait_action", "encode", "wait_ack")


class ActorMetrics:
    """`mode` is `train` or `evaluate`; it labels what must not be added up over both."""

    def __init__(self, registry: CollectorRegistry, mode: str = "train") -> None:
        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(f"shoal_actor_{name}", documentation, labels, registry=registry)

        def gauge(name: str, documentation: str, *labels: str) -> Gauge:
            return Gauge(f"shoal_actor_{name}", documentation, labels, registry=registry)

        self.env_steps = counter("env_steps", "Transitions made; autoresets are none.", "mode").labels(mode)
        self.autoreset_steps = counter("autoreset_steps", "Steps that only started the next episode.")
        self.dropped_steps = counter(
            "dropped_steps",
            "Transitions of open unrolls that were dropped when a stream broke or at the end.",
        )
        open_steps = gauge(
            "open_steps",
            "Transitions that no shard has stored yet, which a kill would lose: in unrolls that are being "
            "recorded, and in those that are not acked (autoresets included).",
            "state",
        )
        self._recording_steps, self._unacked_steps = (
            open_steps.labels("recording"),
            open_steps.labels("unacked"),
        )
        self.unrolls = counter("unrolls", "Unrolls handed to the replay.")
        self.raw_bytes = counter("trajectory_raw_bytes", "Bytes of unrolls before compression.")
        self.encoded_bytes = counter("trajectory_encoded_bytes", "Bytes of unrolls as sent.")

        self._acked = counter("acked_items", "Unrolls that a shard has stored.")
        self._resent = counter(
            "resent_items", "Times an unroll was sent again: after a break, a time-out or a move."
        )
        self._moved = counter("moved_items", "Unrolls given to another shard because theirs was silent.")
        self._timed_out = counter("timed_out_items", "Times a shard did not safely store an unroll in time.")
        self._rejected = counter("rejected_items", "Unrolls that a shard refused for good.")
        self._seen: dict[str, WriterStats] = {}

        self._episodes = counter("episodes", "Episodes finished.", "mode", "policy")
        self._episode_steps = counter("episode_steps", "Steps of finished episodes.", "mode", "policy")
        self._return_sum = gauge(
            "episode_return_sum", "Sum of the returns of finished episodes; can fall.", "mode", "policy"
        )
        self._return_mean = gauge(
            "episode_return_mean", f"Mean return of the last {MEAN_OVER} episodes.", "mode", "policy"
        )
        self._length_mean = gauge(
            "episode_length_mean_steps", f"Mean length of the last {MEAN_OVER} episodes.", "mode", "policy"
        )
        self._policy_version = gauge(
            "policy_version", "Version of the weights that acted last in the newest unroll.", "policy"
        )
        self._mode = mode
        self._of: dict[str, PolicyMetrics] = {}
        self.env_restarts = counter(
            "env_restarts", "Environments that broke or hung and were started again; the log says why."
        )
        self._env_restarts_seen = 0
        self.envs = gauge("envs", "Environments of this actor.")
        self.reconnects = counter("reconnects", "Streams to inference that broke and were opened again.")
        self.phases = Phases(
            registry,
            "shoal_actor_phase",
            "Time of the groups by what they do; all phases add up to the number of groups per second.",
            PHASES,
        )

    def of(self, policy: str) -> PolicyMetrics:
        """What is counted for each policy; all groups of a policy share it."""
        if policy not in self._of:
            labels = self._mode, policy
            self._of[policy] = PolicyMetrics(
                episodes=self._episodes.labels(*labels),
                episode_steps=self._episode_steps.labels(*labels),
                return_sum=self._return_sum.labels(*labels),
                return_mean=self._return_mean.labels(*labels),
                length_mean=self._length_mean.labels(*labels),
                policy_version=self._policy_version.labels(policy),
            )
        return self._of[policy]

    def follow_envs(self, num_restarts: int) -> None:
        """Restarts of environments over the life of the actor."""
        self.env_restarts.inc(num_restarts - self._env_restarts_seen)
        self._env_restarts_seen = num_restarts

    def follow_open(self, *, recording: int, unacked: int) -> None:
        """Transitions that no shard has stored yet, now."""
        self._recording_steps.set(recording)
        self._unacked_steps.set(unacked)

    def follow_writer(self, policy: str, stats: WriterStats) -> None:
        """Adds what the policy's writer counted since the last call."""
        seen = self._seen.get(policy, WriterStats())
        self._acked.inc(stats.num_acked - seen.num_acked)
        self._resent.inc(stats.num_resent - seen.num_resent)
        self._moved.inc(stats.num_moved - seen.num_moved)
        self._timed_out.inc(stats.num_timed_out - seen.num_timed_out)
        self._rejected.inc(stats.num_rejected - seen.num_rejected)
        self._seen[policy] = replace(stats)


@dataclass(frozen=True)
class PolicyMetrics:
    """Episodes and weights of one policy."""

    episodes: Counter
    episode_steps: Counter
    return_sum: Gauge
    return_mean: Gauge
    length_mean: Gauge
    policy_version: Gauge
    _recent: deque[Episode] = field(default_factory=lambda: deque(maxlen=MEAN_OVER))

    def add(self, episodes: Sequence[Episode]) -> None:
        if not episodes:
            return
        self.episodes.inc(len(episodes))
        self.episode_steps.inc(sum(episode.num_steps for episode in episodes))
        self.return_sum.inc(sum(episode.episode_return for episode in episodes))
        self._recent.extend(episodes[-MEAN_OVER:])
        count = len(self._recent)
        self.return_mean.set(sum(episode.episode_return for episode in self._recent) / count)
        self.length_mean.set(sum(episode.num_steps for episode in self._recent) / count)
