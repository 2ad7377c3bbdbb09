"""Several learners of one run: which of them a process is, and what of the configuration is its own.

Whoever starts them (`torchrun`, or `shoal train --learners`) says so in the environment, in the variables of
`torch.distributed`. Pure functions, used by the learner and by what starts it; no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from shoal.config.connections import ListenSection
from shoal.config.tree import Config
from shoal.errors import ConfigError

# What `torch.distributed` reads; none of it may leak from whatever `shoal train` itself was started by.
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """The place of one learner among all, and among those of its machine.

    Rank 0 is the chief: it alone serves weights, saves and reports.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def environment(self, address: str, port: int) -> dict[str, str]:
        """What to start this learner with; the chief opens the port, the others dial it."""
        values = (self.rank, self.size, self.local_rank, self.local_size, address, port)
        return dict(zip(RANK_VARIABLES, map(str, values), strict=True))


def ranks_of(environ: Mapping[str, str]) -> Ranks:
    """One learner on its own unless the environment says otherwise. Raises ConfigError."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return Ranks()
    try:
        ranks = Ranks(
            int(environ["RANK"]),
            int(environ["WORLD_SIZE"]),
            int(environ.get("LOCAL_RANK", "0")),
            int(environ.get("LOCAL_WORLD_SIZE", "1")),
        )
        if not (0 <= ranks.rank < ranks.size and 0 <= ranks.local_rank < ranks.local_size):
            raise ValueError
    except ValueError:
        given = ", ".join(f"{name}={environ[name]!r}" for name in RANK_VARIABLES[:4] if name in environ)
        raise ConfigError(
            f"the environment says {given}, which is no place among learners: start them with torchrun or "
            "`shoal train --learners`, or unset RANK and WORLD_SIZE for a single one"
        ) from None
    return ranks


def num_shares(config: Config) -> int:
    """How many tables the unrolls of a policy are divided among: one per learner of a synchronous run.

    There a learner that took more than its share would leave the others waiting while all actors wait for
    the next version. In other runs learners take whatever comes first out of one table.
    """
    return config.launch.learners if config.algorithm.is_synchronous else 1


def env_shares(num_envs: int, num_learners: int) -> tuple[range, ...]:
    """The environments of one actor that each learner of a synchronous run trains on, as equal as can be."""
    cuts = [rank * num_envs // num_learners for rank in range(num_learners + 1)]
    return tuple(range(start, stop) for start, stop in pairwise(cuts))


def batch_share(config: Config, rank: int, num_learners: int) -> int:
    """Environments that a learner has of every batch."""
    batch_envs, num_envs = config.learner.batch_envs, config.actor.envs
    if not config.algorithm.is_synchronous:
        return batch_envs // num_learners
    return batch_envs // num_envs * len(env_shares(num_envs, num_learners)[rank])


def check_shareable(config: Config, num_learners: int) -> None:
    """Raises ConfigError for a run that so many learners cannot train together."""
    if num_learners != config.launch.learners and config.algorithm.is_synchronous:
        raise ConfigError(
            f"config key 'launch.learners': {config.launch.learners}, but this is one of {num_learners} "
            "learners. Actors divide synchronous unrolls among as many as it says: set it to "
            f"{num_learners} for all services"
        )
    if num_learners == 1:
        return
    _check_divided(config, num_learners)
    share = min(batch_share(config, rank, num_learners) for rank in range(num_learners))
    # Parts of an accumulated batch, and those of policies with a state, are whole environments.
    divisible = {
        "learner.accumulate": (config.learner.accumulate, share, "environments"),
        "algorithm.minibatches": (config.algorithm.num_minibatches, *_items_of(config, share)),
    }
    for key, (num_parts, most, what) in divisible.items():
        if num_parts > most:
            raise ConfigError(
                f"config key '{key}': {num_parts} is above the {most} {what} that each of {num_learners} "
                "learners has of a batch, and each part needs one: lower it, or raise learner.batch_envs"
            )
    if config.learner.sharding == "fsdp":
        _check_divisible(config)


def _check_divided(config: Config, num_learners: int) -> None:
    """Every learner needs a share: of each actor's environments, or of whatever comes."""
    batch_envs, num_envs = config.learner.batch_envs, config.actor.envs
    if config.algorithm.is_synchronous:
        if num_envs < num_learners:
            raise ConfigError(
                f"config key 'actor.envs': {num_envs} environments cannot be divided among {num_learners} "
                "learners, each of which trains on some of every actor's: raise it, or use fewer learners"
            )
    elif batch_envs % num_learners:
        raise ConfigError(
            f"config key 'learner.batch_envs': {batch_envs} cannot be divided among {num_learners} learners: "
            f"set it to a multiple, such as {-(-batch_envs // num_learners) * num_learners}"
        )


def _items_of(config: Config, num_envs: int) -> tuple[int, str]:
    """What minibatches of so many environments are drawn from."""
    if config.policy.has_state:
        return num_envs, "environments"
    return num_envs * config.actor.unroll_length, "steps"


def _check_divisible(config: Config) -> None:
    """FSDP is not written for all: targets are copies of whole networks, and gradients are summed at once."""
    settings = config.learner
    wrong = {
        "algorithm.name": None if config.algorithm.trains == "actor_critic" else config.algorithm.name,
        "learner.accumulate": None if settings.accumulate == 1 else settings.accumulate,
        "learner.precision": "float16" if settings.precision == "float16" else None,
        "learner.compile": settings.compile or None,
        "env.policies": ", ".join(config.env.policies) or None,
    }
    for key, value in wrong.items():
        if value is not None:
            raise ConfigError(
                f"config key '{key}': {value} does not go with learner.sharding 'fsdp', which is for "
                "algorithms that train one actor_critic, in one part, not in float16 and not compiled"
            )


def at_rank(config: Config, ranks: Ranks) -> Config:
    """The configuration that all are given, with the addresses of one."""
    learner = config.learner.model_copy(update={"listen": listen_of(config.learner.listen, ranks)})
    return config.model_copy(update={"learner": learner})


def listen_of(listen: ListenSection, ranks: Ranks) -> ListenSection:
    """Where a learner listens: all are given the same addresses, and those of a machine may not collide.

    The chief alone serves weights. Others of its machine add their local rank to ports and names.
    """
    return listen.model_copy(
        update={
            "grpc": listen.grpc if ranks.is_chief else "",
            "health": _moved(listen.health, ranks.local_rank),
            "metrics": _moved(listen.metrics, ranks.local_rank),
            "announce": listen.announce
            and listen.announce.with_name(_moved_name(listen.announce.name, ranks.local_rank)),
        }
    )


def _moved_name(name: str, local_rank: int) -> str:
    return f"{name}.{local_rank}" if local_rank else name


def _moved(address: str, local_rank: int) -> str:
    """Port 0 stays: it is any free one."""
    if not address:
        return ""
    if address.startswith("unix:"):
        return _moved_name(address, local_rank)
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + local_rank}" if port.isdigit() and int(port) else address
