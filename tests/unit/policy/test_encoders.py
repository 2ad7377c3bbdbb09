"""Which encoder an observation gets, what the convolutions compute, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from shoal.config.network import PolicySection
from shoal.errors import UserError
from shoal.policy.conv import ImageEncoder, to_planes
from shoal.policy.encoders import MAX_IMAGES, Encoder, ImagesEncoder, build_encoder
from shoal.policy.images import ImageLayout, image_layout
from shoal.policy.mlp import MlpEncoder, Tanh
from shoal.records import ArraySpec
from tests.unit.policy.stepping import MIXED, VECTOR


def image(*shape: int, name: str = "image") -> ArraySpec:
    return ArraySpec(name, "uint8", shape)


def encoder(observation: tuple[ArraySpec, ...], **settings: object) -> Encoder:
    config = PolicySection.model_validate(settings)
    return build_encoder(config, observation, config.hidden_sizes)


def random_images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("array", "layout"),
    [
        (image(84, 84), ImageLayout(1, 84, 84, None)),
        (image(84, 96, 3), ImageLayout(3, 84, 96, 2)),
        (image(84, 96, 1), ImageLayout(1, 84, 96, 2)),
        (image(4, 84, 96), ImageLayout(4, 84, 96, 0)),
        (image(84, 84, 12), None),
        (image(3, 3, 3), None),
        (image(128), None),
        (image(2, 84, 84, 3), None),
        (ArraySpec("image", "float32", (84, 84)), None),
        (ArraySpec("image", "uint8", (84, 84), num_categories=9), None),
    ],
)
def test_what_an_image_is(array: ArraySpec, layout: ImageLayout | None) -> None:
    assert image_layout(array) == layout


def test_planes_of_every_layout() -> None:
    """[N, k, H, W, C] is the slow and obvious order; all layouts must show the same planes."""
    frames = random_images(2, 3, 5, 6, 4)
    expected = torch.stack([frames[:, k, :, :, c] for k in range(3) for c in range(4)], dim=1).float()
    assert torch.equal(to_planes(frames, ImageLayout(4, 5, 6, 2), 3), expected)
    assert torch.equal(to_planes(frames.movedim(-1, 2), ImageLayout(4, 5, 6, 0), 3), expected)
    assert torch.equal(to_planes(frames[:, 0], ImageLayout(4, 5, 6, 2), 1), expected[:, :4])
    assert torch.equal(to_planes(frames[:, 0].movedim(-1, 1), ImageLayout(4, 5, 6, 0), 1), expected[:, :4])
    assert torch.equal(to_planes(frames[..., 0], ImageLayout(1, 5, 6, None), 3), expected[:, ::4])
    assert torch.equal(to_planes(frames[:, 0, :, :, 0], ImageLayout(1, 5, 6, None), 1), expected[:, :1])
    assert to_planes(frames, ImageLayout(4, 5, 6, 2), 3).is_contiguous(memory_format=torch.channels_last)


def nature_reference(ours: ImageEncoder, images: Tensor) -> Tensor:
    """Mnih et al. 2015, in plain modules with our weights."""
    one, two, three = (layer for layer in ours.convolutions if isinstance(layer, nn.Conv2d))
    x = images.float() / 255.0
    x = torch.relu(nn.functional.conv2d(x, one.weight, one.bias, stride=4))
    x = torch.relu(nn.functional.conv2d(x, two.weight, two.bias, stride=2))
    x = torch.relu(nn.functional.conv2d(x, three.weight, three.bias, stride=1))
    return torch.relu(nn.functional.linear(x.flatten(1), ours.last.weight, ours.last.bias))


@pytest.mark.parametrize(("height", "width"), [(84, 84), (36, 36), (37, 50)])
def test_the_nature_network_is_the_papers(height: int, width: int) -> None:
    ours = encoder((image(height, width),), frame_stack=4)
    assert isinstance(ours, ImagesEncoder)
    inner = ours.images[0]
    assert isinstance(inner, ImageEncoder)
    shapes = [tuple(layer.weight.shape) for layer in inner.convolutions if isinstance(layer, nn.Conv2d)]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    images = random_images(3, 4, height, width)
    with torch.no_grad():
        torch.testing.assert_close(
            ours({"image": images}), nature_reference(inner, images), atol=1e-5, rtol=1e-5
        )
    assert ours.num_features == 512


@pytest.mark.parametrize("shape", [(64, 64, 3), (3, 72, 96), (8, 9), (20, 11, 1)])
def test_the_impala_network_has_its_sections_and_blocks(shape: tuple[int, ...]) -> None:
    ours = encoder((image(*shape),), network="impala_resnet")
    assert ours.num_features == 256
    channels = [layer.out_channels for layer in ours.modules() if isinstance(layer, nn.Conv2d)]
    assert channels == [16] * 5 + [32] * 5 + [32] * 5
    features = ours({"image": random_images(2, *shape)}).detach()
    assert features.shape == (2, 256)
    # Neither dead nor blown up at the start.
    assert 0.01 < float(features.std()) < 3.0


@pytest.mark.parametrize("network", ["nature_cnn", "impala_resnet"])
def test_gradients_reach_all_weights(network: str) -> None:
    torch.manual_seed(1)
    ours = encoder((image(36, 36, 3),), network=network)
    ours({"image": random_images(16, 36, 36, 3)}).square().sum().backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name


def test_weights_stay_in_the_order_that_files_are_written_in() -> None:
    ours = encoder((image(36, 36),))
    ours({"image": random_images(2, 36, 36)}).sum().backward()
    torch.optim.Adam(ours.parameters()).step()
    assert all(parameter.is_contiguous() for parameter in ours.parameters())


def test_images_get_convolutions_and_the_rest_the_mlp() -> None:
    observation = (VECTOR, image(40, 36, name="a"), image(3, 50, 50, name="b"), *MIXED)
    ours = encoder(observation, hidden_sizes=(32, 16))
    assert isinstance(ours, ImagesEncoder)
    assert ours.names == ("a", "b")
    assert ours.num_features == 512 + 512 + 16
    seen = {
        "observation": torch.randn(5, 4),
        "a": random_images(5, 40, 36),
        "b": random_images(5, 3, 50, 50),
        "observation.frame": random_images(5, 2, 3),
        "observation.kind": torch.randint(0, 5, (5,)),
        "observation.level": torch.randn(5, dtype=torch.float64),
    }
    features = ours(seen)
    assert features.shape == (5, 1040)
    for name in seen:
        changed = ours({**seen, name: seen[name].flip(0)})
        assert not torch.equal(changed, features), f"{name} is not looked at"


def test_mlp_by_name_takes_images_too() -> None:
    ours = encoder((image(36, 36), VECTOR), network="mlp", frame_stack=2)
    assert isinstance(ours, MlpEncoder)
    assert ours.num_features == 64


def test_small_images_go_through_the_mlp_unless_a_network_takes_them() -> None:
    assert isinstance(encoder((image(35, 84),)), MlpEncoder)
    assert isinstance(encoder((image(10, 10, 4),), network="impala_resnet"), ImagesEncoder)


def test_our_tanh_is_tanh_with_its_gradient() -> None:
    x = torch.linspace(-12.0, 12.0, 10_001, requires_grad=True)
    y = Tanh()(x)
    torch.testing.assert_close(y, x.tanh(), atol=3e-7, rtol=0)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope, 1.0 - x.tanh().square(), atol=1e-6, rtol=0)
    low = torch.linspace(-2.0, 2.0, 101).bfloat16()
    assert torch.equal(Tanh()(low), low.tanh())


def test_no_hidden_layers_is_a_linear_policys_encoder() -> None:
    assert encoder((VECTOR,), hidden_sizes=()).num_features == 4


@pytest.mark.parametrize(
    ("observation", "settings", "message"),
    [
        ((VECTOR,), {"network": "nature_cnn"}, r"no image for it: observation float32\[4\]"),
        ((image(35, 84),), {"network": "nature_cnn"}, r"image uint8\[35, 84\].*H and W at least 36"),
        ((image(7, 7),), {"network": "impala_resnet"}, "H and W at least 8"),
        ((image(84, 84, 5),), {"network": "nature_cnn"}, "C at most 4"),
        ((VECTOR,), {"network": "resnet"}, "'resnet': known are auto, mlp, nature_cnn, impala_resnet"),
        ((VECTOR,), {"network_kwargs": {"a": 1}}, "network_kwargs are for an encoder of your own"),
        ((image(5000, 5000),), {}, r"25000000 inputs.*limit 16777216"),
        ((image(1024, 1024),), {}, r"984064 features.*limit 262144"),
        ((image(84, 84, 4),), {"network": "mlp", "frame_stack": 64}, "1806336 inputs"),
        (tuple(image(36, 36, name=str(i)) for i in range(MAX_IMAGES + 1)), {}, "33 images"),
    ],
)
def test_what_does_not_fit_is_the_users_error(
    observation: tuple[ArraySpec, ...], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        encoder(observation, **settings)
