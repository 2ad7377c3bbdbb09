"""All algorithms by name. No torch: the configuration and every service read this.

An algorithm is added by a folder of its own and a line here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shoal.algorithms.apex.profile import ApexConfig
from shoal.algorithms.appo.profile import AppoConfig
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.ppo.profile import PpoConfig
from shoal.algorithms.r2d2.profile import R2d2Config
from shoal.algorithms.sac.profile import SacConfig
from shoal.algorithms.td3.profile import Td3Config

AnyAlgorithm = Annotated[
    ImpalaConfig | PpoConfig | AppoConfig | ApexConfig | R2d2Config | SacConfig | Td3Config,
    Field(discriminator="name"),
]
