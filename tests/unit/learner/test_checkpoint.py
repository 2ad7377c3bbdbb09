"""Checkpoints: whole or not there, whatever kills the writer or damages the files."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.learner.checkpoint import Checkpoint, CheckpointStore, read_checkpoint
from services.learner.progress import Progress
from shoal.checkpoint import STATE, best_of, sums_of
from shoal.config import Config, to_yaml
from shoal.config.network import PolicySection
from shoal.envs.previous import with_previous
from shoal.errors import CheckpointError, UserError
from shoal.records import ArraySpec, DiscreteAction, EnvSpec, Episode
from tests.unit.learner.killing import kill_writers

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(2))
# Of SPEC, as worked out by a release whose specs had no bounds.
HASH_WITHOUT_BOUNDS = "779e3e189d7ec449b5833dfdce8b296095087b033ff79d86de09b5ef1ee75096"
ROOT = Path(__file__).parents[3]


def tensors(value: float = 1.0) -> dict[str, np.ndarray]:
    return {
        "policy/a": np.full((3, 4), value, np.float32),
        "adam/num_steps": np.array(7),
        "rng/cpu": np.arange(9, dtype=np.uint8),
    }


def save(store: CheckpointStore, step: int, spec: EnvSpec = SPEC) -> Path:
    progress = Progress(learner_steps=step, env_steps=step * 20, policy_version=step)
    progress.episodes.extend([Episode(float(step), 3), Episode(0.1, 4)])
    return store.save(tensors(float(step)), progress.to_json(), spec, "run:\n  seed: 1\n")


def make_store(tmp_path: Path, keep: int = 3) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep)
    store.prepare()
    return store


def newest(store: CheckpointStore) -> Checkpoint:
    found = store.newest()
    assert found is not None
    return found


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert store.newest() is None
    save(store, 5)
    found = newest(store)
    for name, array in tensors(5.0).items():
        np.testing.assert_array_equal(found.tensors[name], array)
        assert found.tensors[name].dtype == array.dtype
    assert found.progress.learner_steps == 5
    assert list(found.progress.episodes) == [Episode(5.0, 3), Episode(0.1, 4)]
    assert found.env_spec == SPEC
    assert found.config_yaml == "run:\n  seed: 1\n"
    found.check_spec(SPEC, store.path)


def test_anyone_can_check_the_sums(tmp_path: Path) -> None:
    path = save(make_store(tmp_path), 5)
    subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=path, check=True, capture_output=True
    )


def test_the_newest_are_kept(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep=2)
    for step in (10, 20, 30, 40):
        save(store, step)
    assert sorted(path.name for path in store.path.iterdir()) == ["000003-step-30", "000004-step-40"]
    assert newest(store).progress.learner_steps == 40


def test_numbers_and_not_steps_make_the_order(tmp_path: Path) -> None:
    """A run that passed over a broken one went back in steps, and still is the newest."""
    store = make_store(tmp_path)
    save(store, 1000)
    save(store, 3)
    assert newest(store).progress.learner_steps == 3


def test_another_spec_is_refused_with_both(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    other = EnvSpec("Other-v1", (ArraySpec("observation", "uint8", (84, 84)),), DiscreteAction(6))
    with pytest.raises(CheckpointError) as caught:
        newest(store).check_spec(other, store.path)
    text = str(caught.value)
    assert SPEC.describe() in text
    assert other.describe() in text
    assert text.endswith(": use another run.dir")


def test_a_checkpoint_from_before_bounds_goes_on(tmp_path: Path) -> None:
    """Its JSON and its hash are what a release wrote whose specs had no bounds."""
    store = make_store(tmp_path)
    path = save(store, 1)
    state = json.loads((path / STATE).read_text())
    assert state["spec_hash"] == HASH_WITHOUT_BOUNDS
    assert "low" not in state["env_spec"]["observation"][0]
    observation = tuple(replace(array, low=-4.8, high=4.8) for array in SPEC.observation)
    now = replace(SPEC, observation=observation)
    assert now.hash() != HASH_WITHOUT_BOUNDS
    newest(store).check_spec(now, store.path)
    save(store, 2, now)
    newest(store).check_spec(now, store.path)
    with pytest.raises(CheckpointError, match="of another environment"):
        newest(store).check_spec(
            replace(SPEC, observation=tuple(replace(array, high=1.0) for array in observation)), store.path
        )


@pytest.mark.parametrize(("high", "goes_on"), [(255.0, True), (1.0, False)])
def test_bytes_that_were_scaled_otherwise_do_not_go_on(tmp_path: Path, high: float, goes_on: bool) -> None:
    store = make_store(tmp_path)
    before = replace(SPEC, observation=(ArraySpec("observation", "uint8", (8,)),))
    now = replace(SPEC, observation=(ArraySpec("observation", "uint8", (8,), 0, 0.0, high),))
    save(store, 1, before)
    if goes_on:
        newest(store).check_spec(now, store.path)
        return
    with pytest.raises(CheckpointError, match=r"bounds of observation uint8\[8\] within 0..1 and scaled it"):
        newest(store).check_spec(now, store.path)


def with_config(config_yaml: str) -> Checkpoint:
    return Checkpoint({}, Progress(), SPEC, config_yaml)


def test_the_policy_section_is_compared_by_value(tmp_path: Path) -> None:
    """However it is written down: left out is the default, a list is a tuple."""
    with_config(to_yaml(Config())).check_policy(Config().policy, tmp_path)
    default = PolicySection()
    with_config("policy: {}").check_policy(default, tmp_path)
    with_config("policy: {hidden_sizes: [64, 64.0]}").check_policy(default, tmp_path)
    with pytest.raises(CheckpointError) as caught:
        with_config("policy: {activation: relu, hidden_sizes: [8]}").check_policy(default, tmp_path)
    assert str(caught.value) == (
        f"the checkpoints in {tmp_path} are of another policy: "
        "policy.hidden_sizes was [8] and is [64, 64] now; "
        "policy.activation was relu and is tanh now: use another run.dir"
    )


def test_a_core_from_before_saw_no_previous_inputs(tmp_path: Path) -> None:
    before = "policy: {recurrent: lstm}"
    seeing, not_seeing = (
        PolicySection.model_validate({"recurrent": "lstm", "previous_inputs": seen}) for seen in (True, False)
    )
    with_config(before).check_policy(not_seeing, tmp_path)
    with pytest.raises(CheckpointError, match=r"policy\.previous_inputs was False and is True now"):
        with_config(before).check_policy(seeing, tmp_path)
    shown = Checkpoint({}, Progress(), with_previous(SPEC), before)
    shown.check_policy(seeing, tmp_path)


@pytest.mark.parametrize(
    "config_yaml", ["", "text", "[1]", "run: {}", "policy: 5", "policy: {a: 1}", "a: [", "\x00"]
)
def test_a_policy_section_that_cannot_be_read(tmp_path: Path, config_yaml: str) -> None:
    with pytest.raises(CheckpointError, match=r"^cannot read the policy section .*use another run\.dir$"):
        with_config(config_yaml).check_policy(Config().policy, tmp_path)


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = save(make_store(tmp_path), 1)
    positions = 0
    for file in sorted(path.iterdir()):
        good = file.read_bytes()
        for position in range(0, len(good), max(1, len(good) // 100)):
            for mask in (0x01, 0x20, 0xFF):
                bad = bytearray(good)
                bad[position] ^= mask
                file.write_bytes(bytes(bad))
                with pytest.raises(CheckpointError):
                    read_checkpoint(path)
                positions += 1
        file.write_bytes(good)
    read_checkpoint(path)
    print(f"{positions} flipped bytes, all refused")


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = save(make_store(tmp_path), 1)
    for file in sorted(path.iterdir()):
        good = file.read_bytes()
        for length in {0, 1, len(good) // 2, len(good) - 1}:
            file.write_bytes(good[:length])
            with pytest.raises(CheckpointError):
                read_checkpoint(path)
        file.unlink()
        with pytest.raises(CheckpointError, match=f"cannot read .*{file.name}"):
            read_checkpoint(path)
        file.write_bytes(good)


def test_the_newest_of_at_most_a_step(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep=10)
    for step in (10, 20, 30, 15):
        save(store, step)
    found = store.newest(max_step=25)
    assert found is not None
    # After 30 somebody went back to 10: 15 is newer than 20.
    assert found.progress.learner_steps == 15
    assert store.newest(max_step=9) is None


def save_scored(store: CheckpointStore, step: int, mean: float, episodes: int = 100) -> Path:
    progress = Progress(learner_steps=step)
    progress.episodes.extend([Episode(mean, 3)] * episodes)
    return store.save(tensors(float(step)), progress.to_json(), SPEC, "run:\n  seed: 1\n")


def test_the_best_outlives_newer_ones(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    store = CheckpointStore(path, keep=2, keep_best=True)
    store.prepare()
    save_scored(store, 1, mean=900.0, episodes=99)
    assert best_of(path) is None, "99 episodes are not enough"
    for step, mean in enumerate((1.0, 5.0, 9.0, 3.0, 9.0, 2.0), start=2):
        save_scored(store, step, mean)
    assert sorted(os.listdir(path)) == ["000004-step-4", "000006-step-6", "000007-step-7", "best"]
    # In another life too.
    again = CheckpointStore(path, keep=2, keep_best=True)
    again.prepare()
    save_scored(again, 8, mean=8.9)
    best = best_of(path)
    assert best is not None
    assert read_checkpoint(best).progress.learner_steps == 4
    assert read_checkpoint(path / "best").progress.mean_return == 9.0
    save_scored(again, 9, mean=9.1)
    assert sorted(os.listdir(path)) == ["000008-step-8", "000009-step-9", "best"]
    assert newest(again).progress.learner_steps == 9


def test_a_best_one_that_is_gone_or_broken_is_worth_nothing(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    store = CheckpointStore(path, keep=3, keep_best=True)
    store.prepare()
    shutil.rmtree(save_scored(store, 1, mean=100.0))
    assert best_of(path) is None
    (save_scored(store, 2, mean=50.0) / "state.json").write_text("{")
    third = save_scored(store, 3, mean=1.0)
    assert best_of(path) == third


def test_without_keep_best_there_is_none(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save_scored(store, 1, mean=1.0)
    assert best_of(store.path) is None


def damage(path: Path) -> None:
    file = path / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-3])


def test_a_broken_newer_one_is_reported_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(tmp_path)
    save(store, 10)
    broken = save(store, 20)
    damage(broken)
    with caplog.at_level(logging.ERROR):
        assert newest(store).progress.learner_steps == 10
    assert str(broken) in caplog.text
    assert "SHA-256" in caplog.text
    save(store, 20)
    assert newest(store).progress.learner_steps == 20, "the next save takes a number of its own"


def test_only_broken_ones_stop_the_run(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    damage(save(store, 10))
    with pytest.raises(
        CheckpointError, match=r"no usable checkpoint: .*: restore one, or use another run\.dir"
    ):
        store.newest()


def test_correct_sums_over_nonsense(tmp_path: Path) -> None:
    """Not damage but another program: an error of its own kind, never a traceback."""
    path = save(make_store(tmp_path), 1)
    good = (path / "tensors.safetensors").read_bytes()
    for tensors_file, state in (
        (b"nonsense", b"{}"),
        (good, b"{}"),
        (good, b"[1, 2]"),
        (good, b"\xff\xfe"),
        (good, b'{"format": 99}'),
        (b"nonsense", (path / "state.json").read_bytes()),
    ):
        (path / "tensors.safetensors").write_bytes(tensors_file)
        (path / "state.json").write_bytes(state)
        (path / "SHA256SUMS").write_bytes(sums_of({"tensors.safetensors": tensors_file, "state.json": state}))
        with pytest.raises(CheckpointError):
            read_checkpoint(path)


def test_leftovers_of_dead_writers_are_cleared_and_other_files_are_not(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    (store.path / ".tmp-000001-step-5").mkdir()
    (store.path / ".tmp-000001-step-5" / "state.json").write_text("{")
    (store.path / "notes.txt").write_text("mine")
    store.prepare()
    assert [path.name for path in store.path.iterdir()] == ["notes.txt"]
    assert store.newest() is None


def test_a_run_directory_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    store = CheckpointStore(tmp_path / "run" / "checkpoints", 3)
    with pytest.raises(UserError, match=r"cannot write to .*/run/checkpoints: Not a directory.*run\.dir"):
        store.prepare()


def test_a_full_disk_leaves_the_last_one_and_no_mess(tmp_path: Path) -> None:
    """A limit on the size of files, in a process of its own, fails writes in the middle like a full disk."""
    script = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from services.learner.checkpoint import CheckpointStore
from services.learner.progress import Progress
from shoal.records import ArraySpec, DiscreteAction, EnvSpec
spec = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(2))
store = CheckpointStore(Path(sys.argv[1]), 3)
store.prepare()
store.save({"a": np.zeros(10)}, Progress(learner_steps=1).to_json(), spec, "")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
for _ in range(3):
    try:
        store.save({"a": np.zeros(1 << 20)}, Progress(learner_steps=2).to_json(), spec, "")
    except OSError as error:
        print(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(store.newest().progress.learner_steps, sorted(p.name for p in store.path.iterdir()))
store.save({"a": np.zeros(1 << 20)}, Progress(learner_steps=3).to_json(), spec, "")
print(store.newest().progress.learner_steps)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "c")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["File too large"] * 3 + ["1 ['000001-step-1']", "3"]


def test_versions_never_go_back_under_kills(tmp_path: Path) -> None:
    found = kill_writers("versions", tmp_path / "v", 30, seed=2, timeout_s=100)
    print(f"killed {found['rounds']} users of versions: {found}")
    assert found["gone_back"] == 0
    assert found["numbers"] > 30
