"""Composition root of the learner: `python -m services.learner --config run.yaml`.

Listens first and imports torch meanwhile, so that subscribers never find the door closed. Then waits for the
env spec that the first of them brings, and trains until a stop condition or a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from pathlib import Path
from typing import Any

from services.learner.checkpoint import CheckpointStore
from services.learner.files import DirectoryLock
from services.learner.metrics import LearnerMetrics
from services.learner.publisher import WeightsPublisher
from services.learner.result import clear_result
from services.learner.servicer import WeightsServicer
from services.learner.sources import make_source
from services.learner.versions import VersionCounter
from shoal.config import Config
from shoal.config.load import check_trainable
from shoal.errors import UserError
from shoal.metrics import start_metrics_server
from shoal.records import EnvSpec
from shoal.rpc.process import ServiceContext, run_service
from shoal.rpc.server import RpcServer

# For calls to end once all subscriptions were told to.
CLOSING_S = 1.0


async def main(config: Config, context: ServiceContext) -> None:
    check_trainable(config)
    importing = asyncio.create_task(asyncio.to_thread(importlib.import_module, "services.learner.session"))
    store = CheckpointStore(config.run.dir / "checkpoints", config.learner.keep_checkpoints)
    lock = await asyncio.to_thread(_take_run_dir, config.run.dir, store)
    versions = VersionCounter(config.run.dir / "policy_version")
    publisher = WeightsPublisher(versions, config.policy)
    metrics = LearnerMetrics(context.registry)
    listen = config.learner.listen
    server = RpcServer(listen.grpc, listen.health, config.security, config.limits, config.rpc)
    WeightsServicer(publisher, metrics).add_to(server)
    endpoint = start_metrics_server(listen.metrics, context.registry)
    try:
        await server.start()
        await context.announce(grpc=server.address, health=server.health_address, metrics=endpoint.address)
        session: Any = await importing
        session.device_of(config)
        spec = await _spec_or_stop(publisher, context.stopping)
        if spec is not None:
            parts = session.Parts(publisher, versions, store, metrics)
            await _train(config, context, session, parts, spec)
    finally:
        publisher.close()
        await server.drain(CLOSING_S)
        endpoint.close()
        lock.release()


def _take_run_dir(run_dir: Path, store: CheckpointStore) -> DirectoryLock:
    """Make sure that the run's directory is writable and ours alone. Raises UserError."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        # Before anything is cleared away: the temporary files of a running learner are not leftovers.
        with contextlib.ExitStack() as stack:
            lock = DirectoryLock(run_dir)
            stack.callback(lock.release)
            store.prepare()
            clear_result(run_dir)
            stack.pop_all()
            return lock
    except OSError as error:
        raise UserError(
            f"cannot write to {error.filename}: {error.strerror}. Set run.dir to a writable directory"
        ) from None


async def _train(config: Config, context: ServiceContext, session: Any, parts: Any, spec: EnvSpec) -> None:
    source = make_source(config)
    source.start()
    try:
        await session.train(config, parts, spec, source, context.stopping)
    finally:
        await source.close()


async def _spec_or_stop(publisher: WeightsPublisher, stopping: asyncio.Event) -> EnvSpec | None:
    """The run's spec, or None when told to stop before there is one."""
    spec = asyncio.create_task(publisher.spec())
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait({spec, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if spec.done():
        return spec.result()
    spec.cancel()
    return None


if __name__ == "__main__":
    run_service("learner", main)
