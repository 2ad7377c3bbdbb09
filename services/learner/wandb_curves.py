"""Learning curves for Weights & Biases, where `run.wandb` asks for them; TensorBoard gets the same.

Values come from the training thread; a thread of its own imports wandb when the first ones arrive, starts it
and hands them over. Without a network use `WANDB_MODE=offline`, and `wandb sync` later. Whatever goes wrong
there costs curves, never training.
"""

from __future__ import annotations

import importlib.util
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from services.learner.files import replace_durably
from shoal.config import Config, to_yaml
from shoal.config.policies import PolicyPlace
from shoal.errors import UserError
from shoal.records import DEFAULT_POLICY

log = logging.getLogger(__name__)

ENV_STEPS = "env_steps"
_ID_FILE = "wandb_id"


def check_installed(config: Config) -> None:
    """Raises UserError: at the start, not when the first values come."""
    if config.run.wandb and importlib.util.find_spec("wandb") is None:
        raise UserError("run.wandb needs wandb: pip install 'shoal[wandb]', or set run.wandb to false")


class WandbCurves:
    """One run there for each policy, over all lives of the learner; the x axis is environment steps."""

    def __init__(self, config: Config, place: PolicyPlace) -> None:
        self._config = config
        self._place = place
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="wandb")
        self._run: Any = None
        self._broken = False

    def add(self, env_steps: int, values: dict[str, float]) -> None:
        """Returns at once."""
        self._pool.submit(self._safely, self._log, env_steps, values)

    def close(self) -> None:
        """Waits until all is handed over."""
        self._pool.submit(self._safely, self._finish)
        self._pool.shutdown()

    def _safely(self, work: Any, *arguments: Any) -> None:
        if self._broken:
            return
        try:
            work(*arguments)
        except Exception as error:
            # Nobody looks at this thread's results, and no curve is worth a run.
            self._broken = True
            log.error("no more curves for Weights & Biases: %r", error)

    def _log(self, env_steps: int, values: dict[str, float]) -> None:
        if self._run is None:
            self._run = self._start()
        self._run.log({ENV_STEPS: env_steps, **values})

    def _finish(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _start(self) -> Any:
        import wandb

        settings, place = self._config.run, self._place
        run = wandb.init(
            project=settings.wandb_project,
            name=settings.name if place.name == DEFAULT_POLICY else f"{settings.name}-{place.name}",
            id=_run_id(place.dir / _ID_FILE),
            resume="allow",
            dir=str(place.dir),
            # Without secrets.
            config=yaml.safe_load(to_yaml(self._config)),
        )
        run.define_metric("*", step_metric=ENV_STEPS)
        return run


def _run_id(path: Path) -> str:
    """Kept in the run's directory, so that the next life of the learner goes on with the same curves."""
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        made = secrets.token_hex(8)
        replace_durably(path, f"{made}\n".encode())
        return made
