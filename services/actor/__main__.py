"""The actor as a program: `python -m services.actor --config run.yaml`.

Imports nothing at the top: each worker process of asynchronous environments imports this module again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> NoReturn:
    from services.actor.loop import run_actor
    from shoal.config import Config
    from shoal.config.trainable import check_trainable
    from shoal.rpc.process import ServiceContext, run_service

    async def run_checked(config: Config, context: ServiceContext) -> None:
        check_trainable(config)
        await run_actor(config, context)

    run_service("actor", run_checked, argv)


if __name__ == "__main__":
    main()
