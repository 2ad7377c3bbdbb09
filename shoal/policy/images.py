"""Which arrays of an observation are images, and how their axes lie.

An image is an array [H, W], [H, W, C] or [C, H, W] of uint8, or of floats with finite bounds, its channels
being the one axis at the front or at the back with at most 4 entries (gray, gray and alpha, RGB, RGBA, or
four frames). Used by `shoal.policy.encoders`; stateless.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.policy.scaling import has_useful_bounds
from shoal.records import ArraySpec

MAX_CHANNELS = 4


@dataclass(frozen=True)
class ImageLayout:
    """An image by its sides; `channel_axis` is 0, 2, or None of [H, W]."""

    channels: int
    height: int
    width: int
    channel_axis: int | None


def image_layout(array: ArraySpec) -> ImageLayout | None:
    """None of what is no image, by its dtype or by its shape."""
    is_float = array.dtype.startswith("float")
    if array.num_categories or not (array.dtype == "uint8" or (is_float and has_useful_bounds(array))):
        return None
    shape = array.shape
    if len(shape) == 2:
        return ImageLayout(1, *shape, channel_axis=None)
    if len(shape) != 3:
        return None
    if shape[2] <= MAX_CHANNELS < shape[0]:
        return ImageLayout(shape[2], shape[0], shape[1], channel_axis=2)
    if shape[0] <= MAX_CHANNELS < shape[2]:
        return ImageLayout(shape[0], shape[1], shape[2], channel_axis=0)
    return None


def to_planes(images: Tensor, layout: ImageLayout, num_frames: int) -> Tensor:
    """[N, C, H, W] as floats, not scaled; a stack's frames [N, k, ...] become channels, frame by frame.

    In memory the channels are last: convolutions on a CPU train a third faster so.
    """
    if num_frames == 1:
        images = images.unsqueeze(1)
    if layout.channel_axis is None:
        images = images.unsqueeze(-1)
    elif layout.channel_axis == 0:
        images = images.movedim(2, -1)
    # Now [N, k, H, W, C]. Moved as they are: bytes take a fourth of the floats' memory.
    moved = images.permute(0, 2, 3, 1, 4).flatten(3).contiguous()
    return moved.to(torch.float32).permute(0, 3, 1, 2)
