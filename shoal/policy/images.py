"""Which arrays of an observation are images, and how their axes lie.

An image is an array [H, W], [H, W, C] or [C, H, W] of uint8, or of floats with finite bounds, its channels
being the one axis at the front or at the back with at most 4 entries (gray, gray and alpha, RGB, RGBA, or
four frames). Used by `shoal.policy.encoders`, and without torch by whoever has to know what is an image.
Stateless.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.policy.scaling import has_useful_bounds
from shoal.records import ArraySpec

MAX_CHANNELS = 4
# Smaller ones are flattened into the MLP, unless a network for smaller ones is asked for.
USUAL_MIN_SIDE = 36


@dataclass(frozen=True)
class ImageLayout:
    """An image by its sides; `channel_axis` is 0, 2, or None of [H, W]."""

    channels: int
    height: int
    width: int
    channel_axis: int | None

    @property
    def side(self) -> int:
        """The shorter one."""
        return min(self.height, self.width)


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


def has_images(observation: Iterable[ArraySpec]) -> bool:
    """Whether `policy.network: auto` puts a CNN on some of it."""
    layouts = (image_layout(array) for array in observation)
    return any(layout is not None and layout.side >= USUAL_MIN_SIDE for layout in layouts)
