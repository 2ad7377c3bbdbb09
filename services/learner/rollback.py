"""Going back to a checkpoint, because a guard asks for it: all learners together. Training thread only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from services.learner.checkpoint import CheckpointStore
from services.learner.peers import Peers
from services.learner.progress import Progress
from services.learner.resume import Resumed
from services.learner.start import begin_alike


def go_back(
    peers: Peers, store: CheckpointStore, at: Resumed, before_step: int, seed: int
) -> Progress | None:
    """To the newest checkpoint of at most `before_step`, which the chief reads. None if there is none.

    The chief puts away those that came after it; it stays on the disk throughout, for a new life.
    The version and the time go on from where they are: neither ever goes back.
    """
    checkpoint = store.newest(before_step) if peers.rank == 0 else None
    (is_there, *_) = peers.gather(np.array([checkpoint is not None], np.int64))
    if not is_there[0]:
        return None
    version, seconds = at.progress.policy_version, at.progress.seconds
    if checkpoint is not None:
        at.trainer.load_state(checkpoint.tensors)
        store.put_away_after(checkpoint.progress.learner_steps)
        at = replace(at, progress=checkpoint.progress, read=checkpoint.tensors)
    progress = begin_alike(peers, at, seed).progress
    progress.policy_version, progress.seconds = version, seconds
    return progress
