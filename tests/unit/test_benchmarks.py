"""The benchmarks start: every module can be imported and takes its arguments. Speeds are no test."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import replay, replay_data, replay_pong, replay_reverb
from shoal.config.tree import LimitsSection
from shoal.records import FIRST, OBSERVATION
from shoal.wire import decode_sequence, decode_trajectory, encode_trajectory

ROOT = Path(__file__).resolve().parents[2]
# Run by another interpreter, without shoal.
SIDE = replay_reverb.SIDE
MODULES = sorted(path.stem for path in (ROOT / "benchmarks").glob("replay*.py") if path != SIDE)
LIMITS = LimitsSection()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_the_replay_benchmark_can_be_imported(name: str) -> None:
    assert importlib.import_module(f"benchmarks.{name}").__doc__


def test_the_program_shows_its_help() -> None:
    command = [sys.executable, "-m", "benchmarks.replay", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    for name in ("--quick", "--pong-transitions", *replay.PARTS):
        assert name in done.stdout


def test_every_part_is_there(tmp_path: Path) -> None:
    bench = replay.Bench(replay.QUICK, tmp_path, tmp_path, 100, replay.Progress())
    assert all(callable(bench.part(name)) for name in replay.PARTS)
    assert replay.arguments(["--quick", "--only", "memory", "index"]).only == ["memory", "index"]


def test_reverbs_side_needs_nothing_of_shoal() -> None:
    tree = ast.parse(SIDE.read_text(), feature_version=(3, 8))
    imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {"numpy", "reverb", "tensorflow"} <= set(imported)
    assert not [name for name in imported if name.split(".")[0] in ("shoal", "services", "benchmarks")]


def test_without_python_for_reverb_the_reason_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_reverb.sys, "version_info", (3, 13, 0))
    monkeypatch.setattr(replay_reverb.shutil, "which", lambda name: None)
    with replay_reverb.start_reverb(tmp_path, tmp_path, {}) as side:
        assert side == "Reverb 0.14 needs python3.11, which is not on the PATH"


def test_made_up_pong_is_cut_into_unrolls_that_continue_each_other() -> None:
    recording = replay_pong.Recording(replay_pong.made_up(40), real=False)
    unrolls = [t for t in recording.trajectories(20) if t.stream == 3]
    assert [t.first_step for t in unrolls] == [0, 20]
    joined = decode_sequence([encode_trajectory(t) for t in unrolls], LIMITS)
    whole = recording.columns[OBSERVATION][:, 3:4]
    np.testing.assert_array_equal(joined.columns[OBSERVATION], whole)
    assert len(np.unique(whole, axis=0)) == 41, "the picture moves"
    assert recording.num_transitions == 40 * replay_pong.NUM_ENVS


def test_a_recording_is_read_back_without_pickle(tmp_path: Path) -> None:
    columns = replay_pong.made_up(5)
    np.savez_compressed(tmp_path / "pong.npz", **columns)
    recording = replay_pong.load_or_record(tmp_path, 40, replay.Progress())
    assert recording.real
    assert all(np.array_equal(recording.columns[name], column) for name, column in columns.items())


def test_cartpole_and_sized_items_are_what_they_say() -> None:
    small = replay_data.cartpole(3, 64)
    assert [(t.unroll_length, t.num_envs, t.stream) for t in small] == [(64, 1, i) for i in range(3)]
    assert any(t.columns[FIRST][1:].any() for t in small), "episodes end under random actions"
    parts = replay_data.consecutive(small[0], 16)
    assert [t.first_step for t in parts] == [0, 16, 32, 48]
    for num_bytes in (1_000, 100_000):
        (item,) = replay_data.sized(1, num_bytes)
        encoded = encode_trajectory(item)
        assert num_bytes <= len(encoded) <= num_bytes + 500
        assert decode_trajectory(encoded, LIMITS).unroll_length == 1
