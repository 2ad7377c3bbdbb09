"""How several learners begin alike: the environment's spec and the state of training are the chief's.

Subscribers bring the spec to the chief, and only the chief reads checkpoints: the others need no disk of the
run. Called by `session` in the training thread, before the first batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import torch
from safetensors.numpy import load, save

from services.learner.peers import Peers
from services.learner.progress import Progress
from services.learner.resume import Resumed
from shoal.records import EnvSpec
from shoal.spec_json import spec_from_json, spec_to_json

# The others hear from the chief at least this often while it waits for the spec.
_WAIT_SLICE_S = 0.5


def await_spec(peers: Peers, coming: Future[EnvSpec], is_ending: Callable[[], bool]) -> EnvSpec | None:
    """The spec, on all learners, once the chief has it; None if one of them is to end before."""
    while True:
        spec = _known(coming) if peers.rank == 0 else None
        told = peers.gather(np.array([is_ending(), spec is not None], np.int64))
        if any(one_ends for one_ends, _ in told):
            return None
        if told[0][1]:
            data = b"" if spec is None else json.dumps(spec_to_json(spec)).encode()
            return spec_from_json(json.loads(peers.from_chief(data)))


def _known(coming: Future[EnvSpec]) -> EnvSpec | None:
    try:
        return coming.result(_WAIT_SLICE_S)
    except TimeoutError:
        return None


def begin_alike(peers: Peers, resumed: Resumed, seed: int) -> Resumed:
    """All go on from where the chief does; what they draw at random from then on is their own."""
    begun = replace(resumed, read=None)
    if peers.size == 1:
        return begun
    tensors = _chiefs_state(peers, resumed)
    progress = peers.from_chief(json.dumps(resumed.progress.to_json()).encode())
    if peers.rank == 0:
        return begun
    resumed.trainer.load_state(load(tensors))
    own = np.random.SeedSequence([seed, peers.rank, resumed.trainer.num_steps])
    torch.manual_seed(int(own.generate_state(1)[0]))
    return replace(begun, progress=Progress.from_json(json.loads(progress)))


def _chiefs_state(peers: Peers, resumed: Resumed) -> bytes:
    """What it has read, or what it has made if there was nothing to read."""
    read = peers.from_chief(b"" if resumed.read is None else save(resumed.read))
    if read:
        # Of a divided policy the chief has only its own part of this: what the others hold is something else.
        return read
    is_chief = peers.rank == 0
    made = resumed.trainer.state() if is_chief or resumed.trainer.is_sharded else {}
    return peers.from_chief(save(made) if is_chief else b"")
