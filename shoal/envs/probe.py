"""Makes one environment and tells what it shows and takes: a process of its own, for `shoal.cli.task`.

The environment's section comes as JSON on stdin. The answer goes to the file descriptor that the first
argument names, whatever the environment prints: a line of JSON with the specs and, if the second argument is
seconds to play with random actions, one with the returns. The command itself never loads a simulator.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from typing import Any

from shoal.config.tree import EnvSection
from shoal.envs.batch import BatchEnv
from shoal.envs.make import make_batch_env
from shoal.envs.random_play import returns_of_random_play
from shoal.errors import UserError
from shoal.spec_json import spec_to_json

# Enough to know a mean by.
MAX_EPISODES = 100


def specs_of(env: BatchEnv) -> dict[str, Any]:
    """By policy: the spec, and how many slots of it one environment has."""
    return {
        name: {"spec": spec_to_json(slots.spec), "num_slots": slots.num} for name, slots in env.slots.items()
    }


def main() -> None:
    # Modules of the user's in the working directory are found, after everything else.
    sys.path.append("")
    section = EnvSection.model_validate_json(sys.stdin.read())
    seconds = float(sys.argv[2])
    with os.fdopen(int(sys.argv[1]), "w") as out:
        try:
            env = make_batch_env(section, 1)
        except UserError as error:
            print(json.dumps({"error": str(error)}), file=out)
            return
        with closing(env):
            print(json.dumps({"policies": specs_of(env)}), file=out, flush=True)
            if seconds > 0:
                print(json.dumps(returns_of_random_play(env, seconds, MAX_EPISODES)), file=out)


if __name__ == "__main__":
    main()
