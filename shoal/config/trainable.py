"""What an algorithm can learn from: kinds of policies and of tables. For whoever trains or fills the tables.

A replay on its own holds any table, and takes no part in this.
"""

from __future__ import annotations

from shoal.algorithms.settings import AlgorithmSection
from shoal.config.policies import replay_tables
from shoal.config.ranks import check_shareable
from shoal.config.tables import AnyTable, SampledTable, SequenceTable, TransitionTable
from shoal.config.tree import Config
from shoal.errors import ConfigError


def check_trainable(config: Config) -> None:
    """Raises ConfigError for tables and policies that the algorithm cannot learn from, or are not there."""
    # Of several policies each has a copy of this one: what holds for it holds for all.
    name = config.learner.table
    if name not in config.replay.tables:
        names = ", ".join(config.replay.tables)
        raise ConfigError(f"config key 'learner.table': {name!r} is not one of replay.tables ({names})")
    trained = config.algorithm.trains
    if config.policy.kind != trained:
        raise ConfigError(
            f"config key 'policy.kind': {config.algorithm.name} cannot train a policy of kind "
            f"{config.policy.kind!r}: set it to {trained}, or leave it out"
        )
    check_shareable(config, config.launch.learners)
    replay_tables(config)
    _check_batch(config)
    _check_table(f"replay.tables.{name}", config.replay.tables[name], config)


def _check_batch(config: Config) -> None:
    """Of the algorithms that go over a batch in parts, or need one of all environments."""
    algorithm, batch_envs = config.algorithm, config.learner.batch_envs
    if not algorithm.is_synchronous:
        return
    if batch_envs % config.actor.envs:
        raise ConfigError(
            f"config key 'learner.batch_envs': {batch_envs} is no multiple of actor.envs "
            f"({config.actor.envs}). Synchronous actors wait until a batch is trained on, and that holds the "
            "unrolls of all of them: set it to actor.envs x actors, or algorithm.synchronous to false"
        )
    if config.learner.publish_every != 1:
        raise ConfigError(
            f"config key 'learner.publish_every': {config.learner.publish_every}, but synchronous actors "
            "wait for the version after each batch: set it to 1, or algorithm.synchronous to false"
        )


def check_launched(config: Config) -> None:
    """Raises ConfigError if the actors that are started here could never fill a synchronous batch."""
    num_envs = config.launch.actors * config.actor.envs
    if config.algorithm.is_synchronous and config.learner.batch_envs % num_envs:
        raise ConfigError(
            f"config key 'learner.batch_envs': {config.learner.batch_envs}, but {config.launch.actors} x "
            f"actor.envs are {num_envs}, and a synchronous batch holds the unrolls of all environments: set "
            f"it to {num_envs} (times the agents of a policy), or algorithm.synchronous to false"
        )


def _check_table(path: str, table: AnyTable, config: Config) -> None:
    algorithm, policy = config.algorithm, config.policy
    kinds = algorithm.learns_from
    if table.kind == "transition" and policy.has_state:
        raise ConfigError(
            f"config key '{path}.kind': single transitions hold no state of the policy, and it has some "
            f"(policy.frame_stack is {policy.frame_stack}, policy.recurrent is {policy.recurrent!r}): set it "
            "to sequence"
        )
    if table.kind not in kinds:
        raise ConfigError(
            f"config key '{path}.kind': {algorithm.name} cannot learn from a table of kind {table.kind!r} "
            f"(learner.table is {config.learner.table!r}): set it to {' or '.join(kinds)}"
        )
    if isinstance(table, SampledTable) and table.alpha > 0 and not algorithm.replays:
        raise ConfigError(
            f"config key '{path}.alpha': {algorithm.name} sets no priorities and uses no importance weights "
            f"(got {table.alpha}): set it to 0"
        )
    if isinstance(table, SampledTable):
        _check_begins(path, table, config)
    if isinstance(table, TransitionTable):
        _check_rewards_add_up(path, algorithm)
    if isinstance(table, SequenceTable):
        _check_burn_in(algorithm.num_warmup_rows, table.unrolls * config.actor.unroll_length)


def _check_begins(path: str, table: SampledTable, config: Config) -> None:
    """Steps count as they come into the table: all of them may have come before anything is sampled.

    Nothing else about the ratio can make both sides wait for ever: a table lets the one or the other go on
    whatever its tolerance is, and hands out a part of a batch if it may not hand out all.
    """
    steps_per_item = 1
    if isinstance(table, SequenceTable):
        steps_per_item = (table.unrolls - table.overlap_unrolls) * config.actor.unroll_length
    needed, most = table.min_items * steps_per_item, config.stop.steps
    if most is not None and needed >= most:
        raise ConfigError(
            f"config key '{path}.min_items': {table.min_items} items are {needed} environment steps, and the "
            f"run ends after {most} (stop.steps): nothing would be learnt. Lower the one or raise the other"
        )


def _check_rewards_add_up(path: str, algorithm: AlgorithmSection) -> None:
    """The learner sees sums of rewards only: it can scale them, but not bend each."""
    bent = "reward_symlog" if algorithm.reward_symlog else "reward_clip" if algorithm.reward_clip else None
    if bent is not None and algorithm.reward_steps > 1:
        raise ConfigError(
            f"config key 'algorithm.{bent}': the table sums up the rewards of {algorithm.reward_steps} "
            f"steps, and the learner sees the sums: set {path}.kind to sequence, or n_step to 1 in both"
        )


def _check_burn_in(burn_in: int, num_steps: int) -> None:
    if burn_in >= num_steps:
        raise ConfigError(
            f"config key 'algorithm.burn_in': {burn_in} leaves nothing of sequences of {num_steps} steps "
            "(unrolls of the table x actor.unroll_length): lower it, or make them longer"
        )
