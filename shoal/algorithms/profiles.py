"""All algorithms by name, and which of them fit a task. No torch: every service reads this.

An algorithm is added by a folder of its own and a line here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shoal.algorithms.apex.profile import PROFILE as APEX
from shoal.algorithms.apex.profile import ApexConfig
from shoal.algorithms.appo.profile import PROFILE as APPO
from shoal.algorithms.appo.profile import AppoConfig
from shoal.algorithms.impala.profile import PROFILE as IMPALA
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.ppo.profile import PROFILE as PPO
from shoal.algorithms.ppo.profile import PpoConfig
from shoal.algorithms.profile import ActionKind, Profile
from shoal.algorithms.r2d2.profile import PROFILE as R2D2
from shoal.algorithms.r2d2.profile import R2d2Config
from shoal.algorithms.sac.profile import PROFILE as SAC
from shoal.algorithms.sac.profile import SacConfig
from shoal.algorithms.td3.profile import PROFILE as TD3
from shoal.algorithms.td3.profile import Td3Config

AnyAlgorithm = Annotated[
    PpoConfig | ImpalaConfig | AppoConfig | ApexConfig | R2d2Config | SacConfig | Td3Config,
    Field(discriminator="name"),
]

PROFILES: dict[str, Profile] = {
    profile.name: profile for profile in (PPO, IMPALA, APPO, APEX, R2D2, SAC, TD3)
}

# It learns nearly everything, from any observation and with any action, where steps are cheap.
DEFAULT = "ppo"
# Where they are dear: a replay makes more of each.
_SPARING = {"discrete": "apex", "box": "sac"}


def fitting(action: ActionKind) -> list[str]:
    """Algorithms that can take such actions."""
    return [name for name, profile in PROFILES.items() if action in profile.actions]


def sparing(action: ActionKind) -> str | None:
    """The one that needs the fewest steps; None if there is none for such actions."""
    return _SPARING.get(action)
