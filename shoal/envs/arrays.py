"""Arrays of any library as NumPy arrays, without importing that library.

Environments that compute in JAX, torch or CuPy hand over their own arrays, which may live on a GPU. Used by
`shoal.envs.spaces` and `shoal.envs.native`; no state, usable from any thread.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# DLPack's number for memory that the CPU reads.
_DLPACK_CPU = 1
# Elements; of more the linear algebra library may use threads.
_MAX_SQUARED = 8192


def to_numpy(value: Any) -> np.ndarray:
    """`value` as a NumPy array, copied to the host if it is on a device; shares memory where it can.

    What JAX hands over is read-only.
    """
    if type(value) is np.ndarray:
        return value
    if hasattr(value, "detach"):  # torch: it refuses an implicit copy from a device or out of a graph
        array: np.ndarray = value.detach().cpu().numpy()
        return array
    if hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except TypeError:
            if not hasattr(value, "__dlpack__"):
                raise
            # CuPy has `__array__` only to refuse: a copy from the device must be asked for.
    if hasattr(value, "__dlpack__"):
        on_cpu = value.__dlpack_device__()[0] == _DLPACK_CPU
        return np.from_dlpack(value) if on_cpu else np.from_dlpack(value, device="cpu", copy=True)
    return np.asarray(value)


def all_finite(array: np.ndarray) -> bool:
    """Whether there is neither NaN nor infinity in it. Asked at every step of every environment."""
    if array.dtype.kind != "f":
        return True
    if array.size <= _MAX_SQUARED and array.itemsize >= 4:
        # NaN and infinity show in the sum of squares, which is quicker; it may also overflow by itself.
        flat = array.ravel(order="K")
        if math.isfinite(np.vdot(flat, flat)):
            return True
    return bool(np.isfinite(array).all())
