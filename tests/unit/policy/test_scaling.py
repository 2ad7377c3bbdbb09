"""Which arrays are scaled by their bounds, and what the networks see of them."""

from __future__ import annotations

import pytest
import torch

from shoal.config.network import PolicySection
from shoal.policy.array_input import array_input
from shoal.policy.conv import NETWORKS, ImageEncoder
from shoal.policy.encoders import ImagesEncoder, build_encoder
from shoal.policy.images import image_layout
from shoal.policy.scaling import BYTES, UNSCALED, Scaling, scaling_of
from shoal.records import ArraySpec

IMAGE = ArraySpec("image", "float32", (36, 40), 0, -1.0, 3.0)


@pytest.mark.parametrize(
    ("dtype", "low", "high", "scaling"),
    [
        ("uint8", None, None, BYTES),
        ("uint8", 0.0, 255.0, BYTES),
        ("uint8", 0.0, 1.0, UNSCALED),
        ("uint8", 0.0, 10.0, Scaling(0.0, 0.1)),
        ("int8", 0.0, 1.0, UNSCALED),
        ("int8", -128.0, 127.0, Scaling(-128.0, 1 / 255)),
        ("int16", -9.0, 9.0, Scaling(-9.0, 1 / 18)),
        ("int16", -32768.0, 32767.0, UNSCALED),
        ("uint16", 0.0, 65535.0, UNSCALED),
        ("int32", -(2.0**31), 2.0**31 - 1, UNSCALED),
        ("int64", 0.0, 100.0, Scaling(0.0, 0.01)),
        ("int64", 0.0, None, UNSCALED),
        ("int64", 0.0, 1e9, UNSCALED),
        ("int64", 7.0, 7.0, UNSCALED),
        ("bool", 0.0, 1.0, UNSCALED),
        ("float32", 0.0, 255.0, BYTES),
        ("float32", -3e38, 3e38, UNSCALED),
    ],
)
def test_the_bounds_decide(dtype: str, low: float | None, high: float | None, scaling: Scaling) -> None:
    bounds = {name: bound for name, bound in (("low", low), ("high", high)) if bound is not None}
    assert scaling_of(ArraySpec("x", dtype, (2,), **bounds)) == scaling


def test_a_grid_of_zeros_and_ones_goes_in_as_it_is() -> None:
    grid = array_input(ArraySpec("grid", "uint8", (2, 2), 0, 0.0, 1.0))
    shown = grid(torch.tensor([[[0, 1], [1, 0]]], dtype=torch.uint8))
    assert torch.equal(shown, torch.tensor([[0.0, 1.0, 1.0, 0.0]]))


def test_integers_are_spread_over_their_bounds_and_floats_are_not() -> None:
    counts = array_input(ArraySpec("counts", "int16", (3,), 0, -10.0, 10.0))
    shown = counts(torch.tensor([[-10, 0, 10]], dtype=torch.int16))
    torch.testing.assert_close(shown, torch.tensor([[0.0, 0.5, 1.0]]))
    speeds = array_input(ArraySpec("speeds", "float32", (1,), 0, -10.0, 10.0))
    assert torch.equal(speeds(torch.tensor([[2.5]])), torch.tensor([[2.5]]))


def test_an_image_of_floats_has_bounds() -> None:
    for shape in ((36, 40), (36, 40, 3), (3, 36, 40)):
        assert image_layout(ArraySpec("image", "float32", shape, 0, 0.0, 1.0)) is not None
        assert image_layout(ArraySpec("image", "float16", shape, 0, 0.0, 1.0)) is not None
        assert image_layout(ArraySpec("image", "float32", shape)) is None
        assert image_layout(ArraySpec("image", "float32", shape, low=0.0)) is None
        assert image_layout(ArraySpec("image", "float32", shape, 0, -3e38, 3e38)) is None
        assert image_layout(ArraySpec("image", "int32", shape, 0, 0.0, 255.0)) is None


@pytest.mark.parametrize("network", ["nature_cnn", "impala_resnet"])
@pytest.mark.parametrize("frame_stack", [1, 2])
def test_convolutions_see_images_of_floats_as_they_see_bytes(network: str, frame_stack: int) -> None:
    """The same picture as bytes and as floats within -1..3, with the same weights."""
    layout = image_layout(IMAGE)
    assert layout is not None
    torch.manual_seed(2)
    of_bytes = ImageEncoder(NETWORKS[network], layout, frame_stack)
    config = PolicySection.model_validate({"network": network, "frame_stack": frame_stack})
    built = build_encoder(config, (IMAGE,), ())
    assert isinstance(built, ImagesEncoder)
    built.images[0].load_state_dict(of_bytes.state_dict())
    leading = (5,) if frame_stack == 1 else (5, frame_stack)
    pixels = torch.randint(0, 256, (*leading, 36, 40), dtype=torch.uint8)
    floats = pixels.float() / 255.0 * 4.0 - 1.0
    with torch.no_grad():
        torch.testing.assert_close(built({"image": floats}), of_bytes(pixels), atol=1e-5, rtol=1e-4)
        one_by_one = torch.cat([built({"image": row.unsqueeze(0)}) for row in floats])
        torch.testing.assert_close(built({"image": floats}), one_by_one, atol=1e-5, rtol=1e-4)


def test_bytes_that_count_to_ten_are_divided_by_ten_in_the_convolutions_too() -> None:
    few = ArraySpec("image", "uint8", (36, 40), 0, 0.0, 10.0)
    config = PolicySection()
    ours, all_bytes = (build_encoder(config, (array,), ()) for array in (few, few.without_bounds()))
    ours.load_state_dict(all_bytes.state_dict())
    counts = torch.randint(0, 11, (2, 36, 40), dtype=torch.uint8)
    with torch.no_grad():
        found = ours({"image": counts})
        torch.testing.assert_close(found, _times(all_bytes, counts, 25.5), atol=1e-5, rtol=1e-4)


def _times(encoder: torch.nn.Module, images: torch.Tensor, factor: float) -> torch.Tensor:
    """What an encoder makes of images that are brighter by a factor, which bytes have no room for."""
    found: torch.Tensor = encoder({"image": images.float() * factor})
    return found


def test_an_image_of_floats_that_is_too_small_goes_through_the_mlp() -> None:
    small = ArraySpec("image", "float32", (8, 8), 0, 0.0, 1.0)
    assert not isinstance(build_encoder(PolicySection(), (small,), (4,)), ImagesEncoder)
