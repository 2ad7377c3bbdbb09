"""The frames that a policy with a frame stack saw before a row. Pure NumPy, used by the unroll builder.

Inference stacks frames, the learner does so again. Between two unrolls the actor, which has shown them, knows
the frames before the next row 0: they are stored with that unroll, so that each can be stacked by itself.
"""

from __future__ import annotations

import numpy as np


def frames_before(history: np.ndarray, rows: np.ndarray, first: np.ndarray) -> np.ndarray:
    """[E, K, ...]: the K frames before the last of `rows` [R, E, ...], oldest first.

    `history` [E, K, ...] is the same for row 0. Frames of an earlier episode, as `first` [R, E] tells, are
    replaced by the first one of the episode.
    """
    num_envs, num_frames = history.shape[:2]
    # Older rows do not matter.
    rows, first = rows[-num_frames - 1 :], first[-num_frames - 1 :]
    frames = np.concatenate([history.swapaxes(0, 1), rows])
    last = len(frames) - 1
    # Where each environment's episode begins; frames before row 0 are of the same one as row 0.
    episode_row = np.where(first, np.arange(len(rows))[:, np.newaxis], -num_frames).max(axis=0)
    wanted = np.arange(last - num_frames, last)[:, np.newaxis]
    places = np.maximum(wanted, num_frames + episode_row)
    before: np.ndarray = frames[places, np.arange(num_envs)].swapaxes(0, 1)
    return before
