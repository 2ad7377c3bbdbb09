"""`shoal export`: a run's trained network as a file that runs without shoal.

Reads a checkpoint, writes the network with torch.export or as ONNX, loads the file again and compares what
it does with the policy. Nothing of an environment is needed. torch is imported when the command runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shoal.cli.eval import Checkpoint, Run
from shoal.cli.requirements import require
from shoal.cli.say import say
from shoal.errors import ShoalError, UserError

if TYPE_CHECKING:
    from shoal.cli.saved_run import SavedRun
    from shoal.policy.exporting import ActingNetwork

Format = Literal["torch", "onnx"]
SUFFIXES: dict[Format, str] = {"torch": ".pt2", "onnx": ".onnx"}


def export(
    run: Run,
    out: Annotated[
        Path,
        typer.Option(
            metavar="PATH", help="A file that ends in .pt2 or .onnx, or a directory for POLICY.pt2."
        ),
    ],
    format: Annotated[
        Format | None,
        typer.Option(help="torch.export or ONNX; by default what PATH ends in, else torch."),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="One policy of several; all by default.")] = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write the acting network of a run's newest checkpoint to a file that runs without shoal.

    Observations, `first` and the policy's state go in, the greedy action and the new state come out.
    The file is compared with the policy to 1e-5; PATH.json says how to call it.

    Exit codes: 0 done, 1 the file would not do what the policy does, 2 your mistake.
    """
    require("shoal export", ("torch", "safetensors"), "inference")
    kind = _format(out, format)
    if kind == "onnx":
        require("--format onnx", ("onnx", "onnxruntime", "onnxscript"), "export")
    from shoal.cli.export_record import arrays_line, describe
    from shoal.cli.saved_run import open_run

    saved = open_run(run, checkpoint or [], policy=policy)
    for name, path in _files(out, kind, list(saved.checkpoints)).items():
        network = _network(saved, name)
        difference = _write(network, path, kind)
        record = describe(network, saved, name, kind, difference)
        Path(f"{path}.json").write_text(
            json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )
        say(f"{path}: {saved.checkpoints[name].path} in {path.stat().st_size:,} bytes")
        say(f"  in   {arrays_line(record['inputs'])}")
        say(f"  out  {arrays_line(record['outputs'])}")
        say(f"  loaded again and compared with the policy: largest difference {difference:.3g}")


def _format(out: Path, asked: Format | None) -> Format:
    of_name = next((format for format, suffix in SUFFIXES.items() if out.suffix == suffix), None)
    if asked is not None and of_name not in (None, asked):
        raise UserError(f"--out {out} is the name of a {of_name} file, and --format is {asked}")
    return asked or of_name or "torch"


def _files(out: Path, format: Format, policies: Sequence[str]) -> dict[str, Path]:
    """Where each policy goes. Makes the directory."""
    suffix = SUFFIXES[format]
    is_file = out.suffix == suffix and not out.is_dir()
    if is_file and len(policies) > 1:
        raise UserError(
            f"--out {out} is one file, and the run has the policies {', '.join(policies)}: give a directory, "
            "or --policy"
        )
    directory = out.parent if is_file else out
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot make the directory {directory}: {error.strerror}") from None
    return {name: out if is_file else out / f"{name}{suffix}" for name in policies}


def _network(saved: SavedRun, policy: str) -> ActingNetwork:
    from shoal.policy.exporting import ActingNetwork
    from shoal.policy.playing import trained_policy

    checkpoint = saved.checkpoints[policy]
    return ActingNetwork(trained_policy(saved.config.policy, checkpoint.env_spec, checkpoint.weights()))


def _write(network: ActingNetwork, path: Path, format: Format) -> float:
    """Puts the file in place if it does what the network does; returns the largest difference."""
    from shoal.policy.export_check import TOLERANCE, largest_difference, open_onnx, open_torch
    from shoal.policy.exporting import write_onnx, write_torch

    write, open_again = (write_torch, open_torch) if format == "torch" else (write_onnx, open_onnx)
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        write(network, temporary)
        difference = largest_difference(network, open_again(temporary))
        if difference > TOLERANCE:
            raise ShoalError(
                f"what was exported differs from the policy by {difference:.3g} (limit {TOLERANCE:g}), so "
                f"that {path} is not written: try the other --format"
            )
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return difference
