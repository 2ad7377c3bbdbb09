"""Arrays of other libraries become NumPy arrays, by whatever way their library offers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.envs.arrays import all_finite, to_numpy


class LikeJax:
    """Converts itself when asked."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._values


class LikeTorch:
    """Must be taken out of the graph and from the device first."""

    def __init__(self, values: np.ndarray, is_plain: bool = False) -> None:
        self._values = values
        self._steps = ["detach", "cpu"] if not is_plain else []

    def detach(self) -> LikeTorch:
        self._steps.remove("detach")
        return self

    def cpu(self) -> LikeTorch:
        self._steps.remove("cpu")
        return self

    def numpy(self) -> np.ndarray:
        assert not self._steps, "can't convert a device tensor that requires grad"
        return self._values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("can't convert a device tensor to numpy")


class LikeCuPy:
    """Only by DLPack: memory of a device is copied when that is asked for."""

    def __init__(self, values: np.ndarray, device: int = 2) -> None:
        self._values = values
        self._device = device

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, *, dl_device: Any = None, copy: Any = None, **others: Any) -> Any:
        assert self._device == 1 or (dl_device == (1, 0) and copy)
        return self._values.__dlpack__()


class OnlyDlpack:
    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **others: Any) -> Any:
        return self._values.__dlpack__()


VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "value",
    [
        VALUES,
        LikeJax(VALUES),
        LikeTorch(VALUES),
        LikeCuPy(VALUES),
        LikeCuPy(VALUES, device=1),
        OnlyDlpack(VALUES),
        VALUES.tolist(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arrays_of_all_kinds(value: Any) -> None:
    array = to_numpy(value)
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, VALUES)


def test_numpy_arrays_and_scalars() -> None:
    assert to_numpy(VALUES) is VALUES
    assert to_numpy(np.int64(3)).shape == ()


def test_what_cannot_be_converted_says_so() -> None:
    class Refuses:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
            raise TypeError("never")

    with pytest.raises(TypeError, match="never"):
        to_numpy(Refuses())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_bad_number_is_seen(dtype: type, value: float) -> None:
    array = np.zeros((5, 3), dtype)
    assert all_finite(array)
    array[3, 1] = value
    assert not all_finite(array)
    assert all_finite(np.full((2, 2), np.finfo(dtype).max, dtype))


def test_integers_are_finite() -> None:
    assert all_finite(np.zeros(3, np.uint8))
    assert all_finite(np.zeros(0, np.float32))
