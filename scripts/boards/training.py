"""Training: does it learn, and if not, what is wrong with it."""

from __future__ import annotations

from boards.panels import Board, Panel
from boards.queries import POLICY, largest, mean, of, quantile, rate, total

WHO = "{{run}} {{policy}}"


def learner(metric: str, *matchers: str) -> str:
    return largest("run, policy", of(f"shoal_learner_{metric}", POLICY, *matchers))


def value(name: str) -> str:
    """Values that the algorithm reports, by name."""
    return largest("run, policy, name", of("shoal_learner_algorithm_value", POLICY, f'name=~"{name}"'))


RETURNS = (
    Panel(
        "Return",
        "Mean of the last 100 training episodes, and of those that began with the untrained policy. Flat "
        "from the start: look at entropy, KL and gradient norm below.",
        [
            (learner("episode_return_mean"), WHO),
            (
                f"{learner('untrained_return_mean')} and {learner('untrained_episodes')} > 0",
                f"{WHO} untrained",
            ),
        ],
        width=12,
    ),
    Panel(
        "Return by mode",
        "What actors see, training and evaluating apart. Evaluation below training: too little was learnt "
        "to act without noise.",
        [
            (
                mean("run, policy, mode", of("shoal_actor_episode_return_mean", POLICY)),
                "{{run}} {{policy}} {{mode}}",
            )
        ],
        width=12,
    ),
    Panel(
        "Episode length",
        "Episodes that suddenly get short or endless: compare with the return, and look at the "
        "environment's end conditions.",
        [(learner("episode_length_mean_steps"), WHO)],
    ),
    Panel(
        "Environment steps of the run",
        "Over all restarts. A step back is a rollback or a restart from a checkpoint: look at the guards.",
        [(learner("run_env_steps"), WHO)],
    ),
    Panel(
        "Learner steps per second",
        "Falls while the environment steps go on: batches are too old or do not fit; look at the stale "
        "steps and the log.",
        [(total("run, policy", rate("shoal_learner_steps_total", POLICY)), WHO)],
        unit="ops",
    ),
)
POLICIES = (
    Panel(
        "Entropy",
        "Falls to nothing before the return is good: raise algorithm.entropy_cost or lower the learning "
        "rate.",
        [(value("entropy"), WHO)],
    ),
    Panel(
        "KL divergence",
        "Of PPO and APPO, old policy to new. Above 0.05 or so for long: lower the learning rate, fewer "
        "epochs, smaller clip.",
        [(value("approx_kl"), WHO)],
    ),
    Panel(
        "Losses",
        "A value loss that grows and grows: scale or clip the rewards, lower the learning rate.",
        [(learner("loss"), "{{run}} {{policy}} loss"), (value(".*loss"), "{{run}} {{policy}} {{name}}")],
    ),
    Panel(
        "Gradient norm",
        "Before clipping. Always far above algorithm.max_grad_norm: every step is clipped; scale the "
        "rewards or lower the rate.",
        [(learner("grad_norm"), WHO)],
    ),
    Panel(
        "Learning rate",
        "With schedule and scaling. Zero: the schedule has ended before the run; raise stop.steps or turn "
        "it off.",
        [(learner("learning_rate"), WHO)],
    ),
    Panel(
        "What else the algorithm reports",
        "The page of the algorithm in docs/algorithms says what each is and where it should be.",
        [
            (
                largest(
                    "run, policy, name",
                    of("shoal_learner_algorithm_value", POLICY, 'name!~"entropy|approx_kl|.*loss"'),
                ),
                "{{run}} {{policy}} {{name}}",
            )
        ],
    ),
)
LAG = (
    Panel(
        "Policy lag of the last batch",
        "Versions between acting and training. Grows in an on-policy run: shorter queues, fewer actors, "
        "or publish less often.",
        [
            (learner("policy_lag_mean"), "{{run}} {{policy}} mean"),
            (learner("policy_lag_p95"), "{{run}} {{policy}} p95"),
            (learner("policy_lag_max"), "{{run}} {{policy}} max"),
        ],
    ),
    Panel(
        "Policy lag of all trained steps",
        "Half of all steps, and 95 %. A long tail: single actors or shards are slow; find them on the "
        "fleet dashboard.",
        [
            (quantile(0.5, "run, policy", "shoal_learner_policy_lag_versions", POLICY), "{{run}} p50"),
            (quantile(0.95, "run, policy", "shoal_learner_policy_lag_versions", POLICY), "{{run}} p95"),
        ],
    ),
    Panel(
        "Steps that count for nothing",
        "Too old for learner.max_policy_lag, or left out by synchronous training. More than a few: the "
        "learner is too slow for its actors.",
        [
            (total("run, policy", rate("shoal_learner_stale_steps_total", POLICY)), "{{run}} stale"),
            (total("run, policy", rate("shoal_learner_outdated_steps_total", POLICY)), "{{run}} outdated"),
        ],
        unit="ops",
    ),
)
SAFETY = (
    Panel(
        "Guards that warn",
        "1 while a guard warns; docs/guards.md says what each looks for and what to do.",
        [
            (
                largest("run, policy, guard", of("shoal_learner_guard_active", POLICY)),
                "{{run}} {{policy}} {{guard}}",
            )
        ],
        largest=1,
    ),
    Panel(
        "Rollbacks, and guards that ended the run",
        "Anything above 0: read the learner's log, and mend what the guard names before you go on.",
        [
            (learner("rollbacks_total"), "{{run}} {{policy}} rollbacks"),
            (
                largest(
                    "run, policy, guard",
                    f"{of('shoal_learner_guard_stop_timestamp_seconds', POLICY)} > bool 0",
                ),
                "{{run}} {{policy}} ended by {{guard}}",
            ),
        ],
    ),
    Panel(
        "Age of the newest checkpoint",
        "Above three intervals: the disk is full or slow; the learner's log says why. A life without one "
        "shows nothing.",
        [(f"time() - ({learner('last_checkpoint_timestamp_seconds')} > 0)", WHO)],
        unit="s",
    ),
)

BOARD = Board(
    "shoal-training",
    "Training",
    "Does it learn, and if not, why not.",
    {"Returns": RETURNS, "The policy": POLICIES, "Policy lag": LAG, "Guards and checkpoints": SAFETY},
    has_policies=True,
)
