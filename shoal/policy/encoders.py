"""Which encoder an observation gets: from its arrays [N, ...] to one vector of features [N, F].

Images go through the convolutions that `policy.network` names, everything else flattened through the MLP;
the features of all are concatenated. Or all arrays go through an encoder of the user's own. Built by
`shoal.policy.trunk`, for inference and for the learner alike. One thread at a time.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from shoal.config.network import PolicySection
from shoal.errors import UserError
from shoal.policy.conv import NETWORKS, ImageEncoder, ImageNetwork
from shoal.policy.images import MAX_CHANNELS, ImageLayout, image_layout
from shoal.policy.mlp import MlpEncoder
from shoal.policy.normaliser import as_shown, can_normalise
from shoal.policy.own_encoder import OwnEncoder
from shoal.policy.scaling import scaling_of
from shoal.records import ArraySpec

# Each has a network of its own, and a spec comes off a socket.
MAX_IMAGES = 32


class ImagesEncoder(nn.Module):
    """An encoder for each image, and an MLP for the other arrays if there are any."""

    def __init__(self, images: dict[str, ImageEncoder], rest: MlpEncoder | None) -> None:
        super().__init__()
        self.names = tuple(images)
        self.images = nn.ModuleList(images.values())
        self.rest = rest
        self.num_features = sum(image.num_features for image in images.values())
        self.num_features += rest.num_features if rest is not None else 0

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        parts = [encode(observation[name]) for name, encode in zip(self.names, self.images, strict=True)]
        if self.rest is not None:
            parts.append(self.rest(observation))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


Encoder = MlpEncoder | ImagesEncoder | OwnEncoder


def build_encoder(
    config: PolicySection, observation: tuple[ArraySpec, ...], hidden_sizes: tuple[int, ...]
) -> Encoder:
    """`observation` is as the environment shows it; the encoder sees stacks of `config.frame_stack`."""
    if not observation:
        raise UserError("the environment shows no observation: nothing to learn from")
    shown = {array.name: as_shown(array) for array in normalised_arrays(config, observation)}
    stacks = tuple(_stacked(shown.get(array.name, array), config.frame_stack) for array in observation)
    if ":" in config.network:
        return OwnEncoder(config.network, config.network_kwargs, stacks)
    if config.network_kwargs:
        raise UserError(
            "policy.network_kwargs are for an encoder of your own, and policy.network is "
            f"{config.network!r}: leave them out"
        )
    if config.network == "mlp":
        return MlpEncoder(stacks, hidden_sizes, config.activation)
    network = _image_network(config.network)
    layouts = _images(observation, network)
    if not layouts and config.network != "auto":
        raise _no_image(config.network, network, observation)
    scalings = {array.name: scaling_of(array) for array in observation}
    if len(layouts) > MAX_IMAGES:
        raise UserError(f"the observation holds {len(layouts)} images (limit {MAX_IMAGES}): show fewer")
    rest = tuple(array for array in stacks if array.name not in layouts)
    mlp = MlpEncoder(rest, hidden_sizes, config.activation) if rest else None
    if mlp is not None and not layouts:
        return mlp
    images = {
        name: ImageEncoder(network, layout, config.frame_stack, scalings[name])
        for name, layout in layouts.items()
    }
    return ImagesEncoder(images, mlp)


def normalised_arrays(config: PolicySection, observation: tuple[ArraySpec, ...]) -> tuple[ArraySpec, ...]:
    """What `policy.normalise_observations` is about: numbers that are no image for a network of images.

    An encoder of the user's own is promised the environment's dtypes: of its arrays only floats are.
    """
    if not config.normalise_observations:
        return ()
    if ":" in config.network:
        return tuple(array for array in observation if array.dtype.startswith("float"))
    images = {} if config.network == "mlp" else _images(observation, _image_network(config.network))
    return tuple(array for array in observation if array.name not in images and can_normalise(array))


def _stacked(array: ArraySpec, num_frames: int) -> ArraySpec:
    return array if num_frames == 1 else replace(array, shape=(num_frames, *array.shape))


def _image_network(name: str) -> ImageNetwork:
    found = NETWORKS.get("nature_cnn" if name == "auto" else name)
    if found is None:
        known = ", ".join(("auto", "mlp", *NETWORKS))
        raise UserError(
            f"policy.network is {name!r}: known are {known}, and of your own `module:factory` or "
            "`file.py:factory`"
        )
    return found


def _images(observation: tuple[ArraySpec, ...], network: ImageNetwork) -> dict[str, ImageLayout]:
    """Those that are large enough for the network; smaller ones go through the MLP."""
    layouts = {array.name: image_layout(array) for array in observation}
    return {
        name: layout
        for name, layout in layouts.items()
        if layout is not None and layout.side >= network.min_side
    }


def _no_image(name: str, network: ImageNetwork, observation: tuple[ArraySpec, ...]) -> UserError:
    shown = ", ".join(array.describe() for array in observation)
    return UserError(
        f"policy.network is {name!r}, but the observation holds no image for it: {shown}. An image is uint8, "
        f"or floats with bounds, [H, W], [H, W, C] or [C, H, W] with C at most {MAX_CHANNELS}, and H and W "
        f"at least {network.min_side}: set policy.network to 'auto' or 'mlp', or wrap the environment"
    )
