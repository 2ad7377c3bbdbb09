"""The file of returns that random play brought, by policy: what a run's own returns are compared with.

`shoal train` writes it into the run directory before anything is started; the learner reads it when it begins
afresh. Where nobody has written one, on a cluster, the learner goes by the first episodes of training.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

NAME = "untrained.json"
# A mean of fewer says too little.
MIN_EPISODES = 4


def encode_untrained(returns: Mapping[str, Sequence[float]]) -> bytes:
    return json.dumps({"returns": returns}).encode()


def read_untrained(run_dir: Path, policy: str) -> tuple[float, ...]:
    """Empty if nothing is known of the policy, or too little, or the file is none of ours."""
    path = run_dir / NAME
    try:
        returns = tuple(map(float, json.loads(path.read_bytes())["returns"].get(policy, ())))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("%s does not hold returns of random play (%s): it is ignored", path, error)
        return ()
    return returns if len(returns) >= MIN_EPISODES and all(map(math.isfinite, returns)) else ()
