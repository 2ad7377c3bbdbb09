"""Encoders of images: the network of Mnih et al. 2015 and the ResNet of Espeholt et al. 2018.

Built by `shoal.policy.encoders`. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.errors import UserError
from shoal.policy.images import USUAL_MIN_SIDE, ImageLayout
from shoal.policy.mlp import linear
from shoal.policy.scaling import BYTES, Scaling

# A spec comes off a socket: it must not be able to ask for images or layers of any size.
MAX_IMAGE_INPUTS = 1 << 24
MAX_FLAT_FEATURES = 1 << 18

_GAIN = nn.init.calculate_gain("relu")


class Conv(nn.Conv2d):
    """A convolution with orthogonal weights and no bias at the start, over inputs times `scale`."""

    def __init__(
        self,
        num_in: int,
        num_out: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        scale: float = 1.0,
        gain: float = _GAIN,
    ) -> None:
        super().__init__(num_in, num_out, kernel, stride, padding)
        self.scale = scale
        nn.init.orthogonal_(self.weight, gain)
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(self, planes: Tensor) -> Tensor:
        # The weights are few: scaling and reordering them at each call is cheaper than scaling the images,
        # and keeps them in the plain order that files are written in.
        weight = self.weight if self.scale == 1.0 else self.weight * self.scale
        weight = weight.contiguous(memory_format=torch.channels_last)
        return functional.conv2d(planes, weight, self.bias, self.stride, self.padding)


class Residual(nn.Module):
    """Two convolutions around which the input is added to the output."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = Conv(channels, channels, 3, padding=1)
        # Small at the start: six blocks in a row must not blow the features up.
        self.two = Conv(channels, channels, 3, padding=1, gain=0.1)

    def forward(self, planes: Tensor) -> Tensor:
        inner = self.one(functional.relu(planes))
        added: Tensor = planes + self.two(functional.relu_(inner))
        return added


def _nature(planes: int, scale: float) -> nn.Sequential:
    return nn.Sequential(
        Conv(planes, 32, 8, stride=4, scale=scale),
        nn.ReLU(inplace=True),
        Conv(32, 64, 4, stride=2),
        nn.ReLU(inplace=True),
        Conv(64, 64, 3),
        nn.ReLU(inplace=True),
    )


def _impala(planes: int, scale: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (16, 32, 32):
        layers += [Conv(planes, channels, 3, padding=1, scale=scale), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [Residual(channels), Residual(channels)]
        planes, scale = channels, 1.0
    return nn.Sequential(*layers, nn.ReLU(inplace=True))


@dataclass(frozen=True)
class ImageNetwork:
    """One architecture: its convolutions for so many input channels times a scale, and what they leave of a
    side."""

    convolutions: Callable[[int, float], nn.Sequential]
    side_after: Callable[[int], int]
    channels_after: int
    num_features: int
    min_side: int


NETWORKS = {
    "nature_cnn": ImageNetwork(
        _nature, lambda side: ((side - 8) // 4 + 1 - 4) // 2 - 1, 64, 512, min_side=USUAL_MIN_SIDE
    ),
    "impala_resnet": ImageNetwork(_impala, lambda side: (side + 7) // 8, 32, 256, min_side=8),
}


class ImageEncoder(nn.Module):
    """Convolutions over one image, or a stack of its frames, and one fully connected layer."""

    def __init__(
        self, network: ImageNetwork, layout: ImageLayout, num_frames: int, scaling: Scaling = BYTES
    ) -> None:
        super().__init__()
        self.layout = layout
        self.offset = scaling.offset
        self.num_frames = num_frames
        self.num_features = network.num_features
        planes = layout.channels * num_frames
        num_flat = (
            network.channels_after * network.side_after(layout.height) * network.side_after(layout.width)
        )
        num_inputs = planes * layout.height * layout.width
        if num_inputs > MAX_IMAGE_INPUTS or num_flat > MAX_FLAT_FEATURES:
            raise UserError(
                f"images of {planes} channels of {layout.height} x {layout.width} have {num_inputs} inputs "
                f"for the network (limit {MAX_IMAGE_INPUTS}) and {num_flat} features after its convolutions "
                f"(limit {MAX_FLAT_FEATURES}): wrap the environment so that it shows less"
            )
        self.convolutions = network.convolutions(planes, scaling.scale)
        self.last = linear(num_flat, self.num_features, _GAIN)

    def forward(self, images: Tensor) -> Tensor:
        planes = to_planes(images, self.layout, self.num_frames)
        if self.offset:
            planes = planes - self.offset
        return functional.relu_(self.last(self.convolutions(planes).flatten(1)))


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
