"""Makes one environment and tells what it shows and takes: a process of its own, for `shoal.cli.task`.

The environment's section comes as JSON on stdin, the answer goes as JSON to the file descriptor that the only
argument names: whatever an environment prints is not in the way, and no simulator is ever loaded into the
command itself.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from typing import Any

from shoal.config.tree import EnvSection
from shoal.envs.make import make_batch_env
from shoal.errors import UserError
from shoal.spec_json import spec_to_json


def probe(section: EnvSection) -> dict[str, Any]:
    """By policy: the spec, and how many slots of it one environment has. Raises UserError."""
    with closing(make_batch_env(section, 1)) as env:
        return {
            name: {"spec": spec_to_json(slots.spec), "num_slots": slots.num}
            for name, slots in env.slots.items()
        }


def main() -> None:
    # Modules of the user's in the working directory are found, after everything else.
    sys.path.append("")
    section = EnvSection.model_validate_json(sys.stdin.read())
    try:
        answer: dict[str, Any] = {"policies": probe(section)}
    except UserError as error:
        answer = {"error": str(error)}
    with os.fdopen(int(sys.argv[1]), "w") as out:
        json.dump(answer, out)


if __name__ == "__main__":
    main()
