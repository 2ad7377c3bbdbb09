"""Says which torch an image got; refuses one without CUDA where that was asked for. Run by the Dockerfile."""

import sys

import torch

variant, cuda = sys.argv[1], torch.version.cuda
if variant not in ("cpu", "cuda"):
    sys.exit(f"error: build argument VARIANT={variant!r}: it is cpu or cuda")
if variant == "cuda" and cuda is None:
    sys.exit(
        f"error: VARIANT=cuda, and torch {torch.__version__} has no CUDA: take wheels for the CPU out of "
        "deploy/docker/wheelhouse, or name an index that has those for CUDA (PIP_INDEX_URL)"
    )
print(f"torch {torch.__version__}, CUDA {cuda or 'none'}")
if variant == "cpu" and cuda is not None:
    print(
        "note: this torch has CUDA, which VARIANT=cpu does not need: the image is gigabytes larger. An index "
        "of CPU wheels (PIP_EXTRA_INDEX_URL), or such a wheel in deploy/docker/wheelhouse, makes it small"
    )
