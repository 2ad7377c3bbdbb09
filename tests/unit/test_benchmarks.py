"""The benchmarks start, and what they compute from what they measure is right. Speeds are no test."""

from __future__ import annotations

import ast
import importlib
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as benchmarks_main
from benchmarks import (
    actor_rates,
    atari_shaped,
    compute_limit,
    console,
    frames_env,
    inference_latency,
    off_policy,
    replay,
    replay_data,
    replay_pong,
    replay_reverb,
    scaling,
    throughput,
    weight_latency,
)
from benchmarks.compute_limit import Limit
from benchmarks.stream_load import Load, joined
from benchmarks.usage import Machine, Process, Usage, Window, cores_by_use
from shoal.cli.scrape import parse
from shoal.config import load_config
from shoal.config.connections import LimitsSection
from shoal.records import FIRST, OBSERVATION, BoxAction, DiscreteAction, MultiDiscreteAction
from shoal.wire import decode_sequence, decode_trajectory, encode_trajectory

ROOT = Path(__file__).resolve().parents[2]
# Run by another interpreter, without shoal.
SIDES = (replay_reverb.SIDE, off_policy.SIDE)
MODULES = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py") if path not in SIDES)
LIMITS = LimitsSection()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_can_be_imported(name: str) -> None:
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


@pytest.mark.parametrize(
    ("side", "needs"),
    [
        (replay_reverb.SIDE, {"numpy", "reverb", "tensorflow"}),
        (off_policy.SIDE, {"torch", "stable_baselines3"}),
    ],
)
def test_the_side_of_another_system_needs_nothing_of_shoal(side: Path, needs: set[str]) -> None:
    tree = ast.parse(side.read_text(), feature_version=(3, 8))
    imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert needs <= set(imported)
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


def _usage(
    time_s: float, cpu_s: dict[str, float], idle_s: float, metrics: dict[str, str] | None = None
) -> Usage:
    """Two cores that are always somewhere."""
    processes = tuple(
        Process(role, number, used, parse((metrics or {}).get(role, "")))
        for number, (role, used) in enumerate(cpu_s.items())
    )
    return Usage(time_s, Machine(2 * time_s, idle_s, 0.0), 0.1 * time_s, processes)


LEARNER_BEFORE = """shoal_learner_env_steps_total{policy="a"} 100.0
shoal_learner_env_steps_total{policy="b"} 50.0
shoal_learner_phase_seconds_total{phase="train",policy="a"} 1.0
shoal_learner_phase_seconds_total{phase="train",policy="b"} 2.0
"""
LEARNER_AFTER = """shoal_learner_env_steps_total{policy="a"} 1100.0
shoal_learner_env_steps_total{policy="b"} 1050.0
shoal_learner_phase_seconds_total{phase="train",policy="a"} 4.0
shoal_learner_phase_seconds_total{phase="train",policy="b"} 4.0
"""


def _window() -> Window:
    begin = _usage(
        10.0, {"launcher": 1.0, "learner": 3.0, "inference": 2.0}, 4.0, {"learner": LEARNER_BEFORE}
    )
    end = _usage(20.0, {"launcher": 1.5, "learner": 9.0, "inference": 6.0}, 9.0, {"learner": LEARNER_AFTER})
    return Window(begin, end)


def test_a_window_is_what_happened_between_two_looks() -> None:
    window = _window()
    assert window.seconds == 10.0
    assert window.trained_rate == 200.0, "the policies of a learner are added up"
    assert window.cpu_s == {"launcher": 0.5, "learner": 6.0, "inference": 4.0}
    assert window.phases("learner") == {"train": 5.0}


def test_the_cores_of_a_window_add_up_to_all_of_its_time() -> None:
    rows = dict(cores_by_use(_window(), {"learner": {"bare training": 4.5}}))
    assert rows["learner, bare training"] == 4.5
    assert rows["learner, the rest"] == 1.5
    assert rows["inference"] == 4.0
    assert rows["idle"] == 5.0
    assert rows["other programs"] == pytest.approx(20.0 - 5.0 - 10.5 - 1.0)
    assert sum(rows.values()) == pytest.approx(2 * 10.0)


def test_a_process_that_was_restarted_spoils_the_window() -> None:
    begin = _usage(1.0, {"launcher": 1.0, "actor": 3.0}, 0.0)
    end = Usage(2.0, begin.machine, 0.2, (begin.processes[0], Process("actor", 77, 0.1, {})))
    with pytest.raises(RuntimeError, match="restarted"):
        Window(begin, end)


def test_the_share_of_the_limit_is_that_of_the_bare_rows(capsys: pytest.CaptureFixture[str]) -> None:
    window = _window()
    limit = Limit(forward_s=0.001, training_s=0.003, num_cores=2, way="by hand")
    assert limit.steps_per_s == 500.0
    measured = atari_shaped.Round(window, limit)
    assert measured.share == pytest.approx(0.4)
    atari_shaped.print_cores(measured)
    printed = capsys.readouterr().out
    shares = [float(word[:-1]) for word in printed.split() if word.endswith("%")]
    # All rows, and the last one, which is their sum.
    assert sum(shares) == pytest.approx(200.0, abs=0.5)
    bare = [line for line in printed.splitlines() if ", bare" in line]
    assert sum(float(line.split()[-2][:-1]) for line in bare) == pytest.approx(40.0, abs=0.1)


def test_the_better_way_of_computing_is_the_limit() -> None:
    separate = Limit(0.25, 0.75, 2, "one thread on each core")
    together = Limit(0.2, 0.6, 2, "2 threads on one batch")
    assert compute_limit.better([separate, together]) is together
    assert compute_limit.mean([separate, together], "both") == Limit(0.225, 0.675, 2, "both")
    assert "2 steps/s (one thread on each core" in separate.describe()


def test_percentiles_and_rates_of_streams() -> None:
    load = joined([Load(np.array([0.001, 0.002]), 1.0), Load(np.array([0.003, 0.004, 0.1]), 1.0)])
    assert load.per_s == 2.5
    assert load.percentile_s(50) == 0.003
    assert load.percentile_s(100) == 0.1


def test_inference_is_compared_with_the_sum_of_pass_and_echo() -> None:
    figures = inference_latency.Figures(
        forward=Load(np.full(4, 0.002), 1.0),
        echo=Load(np.full(4, 0.003), 1.0),
        act=Load(np.full(400, 0.010), 1.0),
        phases={},
        rows_per_pass=256.0,
    )
    assert figures.ratio(50) == pytest.approx(2.0)
    # Four streams that take 5 ms a step would do 800 a second.
    assert figures.throughput_ratio == pytest.approx(2.0)


@pytest.mark.parametrize("case", inference_latency.cases(), ids=lambda case: case.name)
def test_what_p4_sends_fits_its_spec_and_is_counted_as_on_the_wire(case: inference_latency.Case) -> None:
    (array,) = case.spec.observation
    for observation in case.observations:
        assert observation["observation"].shape == (inference_latency.ENVS_PER_ACTOR, *array.shape)
        assert observation["observation"].dtype == array.dtype
    request, reply = inference_latency.wire_bytes(case)
    assert 1_000 < len(request) < case.observations[0]["observation"].nbytes + 500
    assert len(reply) > 64 * 12
    assert min(inference_latency.client_costs(case, repeats=2).values()) > 0.0


def test_a_version_that_is_overtaken_counts_until_a_newer_one_acts() -> None:
    published = [
        weight_latency.Published(version, 10.0 + version, 10.1 + version) for version in (1, 2, 3, 4)
    ]
    seen = [weight_latency.Seen(1, 11.5), weight_latency.Seen(3, 13.25)]
    assert weight_latency.delays_s(published, seen) == pytest.approx([0.5, 1.25, 0.25])


def test_ten_megabytes_are_ten_megabytes() -> None:
    assert 10.0 < weight_latency.WEIGHTS_MB < 10.5


def test_the_timed_learner_finds_what_it_wraps(tmp_path: Path) -> None:
    timed_learner = importlib.import_module("benchmarks.timed_learner")
    trainer, publisher = timed_learner.Trainer, timed_learner.WeightsPublisher
    before = trainer.step, publisher.publish
    calls: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        # Wrapped, not replaced: what they did they still do.
        patch.setattr(trainer, "step", lambda self: "outcome")
        patch.setattr(publisher, "publish", lambda self, version, weights: calls.append(version))
        moments = timed_learner.Moments(tmp_path / "moments")
        moments.wrap()
        publisher.publish(object(), 0, {})
        assert trainer.step(object()) == "outcome"
        publisher.publish(object(), 1, {})
        moments.close()
    assert (trainer.step, publisher.publish) == before
    assert calls == [0, 1]
    (only,) = weight_latency.read_moments(tmp_path / "moments")
    assert only.version == 1
    assert only.step_ended_s <= only.handed_over_s


def test_costs_grow_relative_to_one_actor(capsys: pytest.CaptureFixture[str]) -> None:
    costs = [
        scaling.Cost(1, 1000.0, 64.0, {"actor": 1.0, "inference": 2.0, "replay": 0.5, "learner": 0.5}),
        scaling.Cost(32, 900.0, 640.0, {"actor": 2.0, "inference": 2.0, "replay": 0.5, "learner": 0.5}),
    ]
    scaling.print_costs(costs, scaling.Settings())
    printed = capsys.readouterr().out
    assert "+25%" in printed
    assert "missed: target at most 20" in printed


def test_verdicts() -> None:
    assert console.verdict(0.8, 0.8) == "met: target at least 0.8"
    assert console.verdict(0.79, 0.8) == "missed: target at least 0.8"
    assert console.verdict(151.0, 150.0, at_most=True) == "missed: target at most 150"


def test_random_actions_are_within_bounds() -> None:
    rng = np.random.default_rng(1)
    assert set(actor_rates.draw(DiscreteAction(3), 100, rng)) == {0, 1, 2}
    several = actor_rates.draw(MultiDiscreteAction((2, 5)), 100, rng)
    assert several.shape == (100, 2)
    assert several.max(axis=0).tolist() == [1, 4]
    box = actor_rates.draw(BoxAction((2, 1), (-0.5, -np.inf), (0.5, np.inf)), 100, rng)
    assert box.shape == (100, 2, 1)
    assert box.dtype == np.float32
    assert np.abs(box[:, 0]).max() <= 0.5
    assert np.abs(box[:, 1]).max() <= 1.0


@pytest.mark.parametrize("stacked", [False, True])
def test_the_atari_shaped_environment_keeps_gymnasiums_rules(stacked: bool) -> None:
    env = frames_env.AtariShaped(3, stacked)
    shown, _ = env.reset(seed=1)
    assert env.observation_space.contains(shown)
    ended = np.zeros(3, np.bool_)
    ends = 0
    for _ in range(3000):
        before = shown
        shown, reward, terminated, truncated, _ = env.step(np.zeros(3, np.int64))
        assert not (terminated & ended).any(), "the step after an end only starts the next episode"
        assert reward.dtype == np.float32
        assert not truncated.any()
        ended = terminated
        ends += int(terminated.sum())
    assert env.observation_space.contains(shown)
    assert not np.array_equal(before, shown), "the picture moves"
    assert 2 <= ends <= 30
    if stacked:
        np.testing.assert_array_equal(before[:, 1:], shown[:, :-1], "each stack is the one before, moved on")


def test_the_bare_network_is_the_published_one_in_both_layouts() -> None:
    torch = importlib.import_module("torch")
    bare_torch = importlib.import_module("benchmarks.bare_torch")
    policy = bare_torch.nature_cnn(6)
    # Convolutions and 512 units (Mnih et al. 2015), and two heads.
    num = 8 * 8 * 4 * 32 + 32 + 4 * 4 * 32 * 64 + 64 + 3 * 3 * 64 * 64 + 64 + 3136 * 512 + 512 + 513 * 7
    assert sum(p.numel() for p in policy.parameters()) == num
    other = bare_torch.nature_cnn(6, torch.channels_last)
    other.load_state_dict(policy.state_dict())
    unrolls = bare_torch.made_up_unrolls(2, 3, 6)
    frames = unrolls.observation_SB[0]
    torch.testing.assert_close(policy(frames), other(frames), rtol=1e-4, atol=1e-5)
    before = policy.value.weight.clone()
    bare_torch.Learner(policy).step(unrolls)
    assert not torch.equal(before, policy.value.weight)
    action, log_prob = bare_torch.act(policy, frames)
    with torch.inference_mode():
        expected = torch.log_softmax(policy(frames)[0], -1).gather(-1, action[:, None])[:, 0]
    torch.testing.assert_close(log_prob, expected, rtol=1e-4, atol=1e-5)


def test_the_program_takes_parts_and_a_quick_scale() -> None:
    everything = benchmarks_main.arguments([])
    assert everything.only == ["p1", "p2", "p3", "p4", "p7", "p8", "p12", "actors"]
    assert not everything.quick
    some = benchmarks_main.arguments(["--quick", "--only", "p4", "p8"])
    assert (some.quick, some.only) == (True, ["p4", "p8"])
    with pytest.raises(SystemExit):
        benchmarks_main.arguments(["--only", "p5"])


def test_a_part_that_breaks_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("no run")

    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "p2", "p8"])
    monkeypatch.setitem(benchmarks_main.PARTS, "p2", breaks)
    monkeypatch.setitem(benchmarks_main.PARTS, "p8", lambda scale, directory: print("P8 is fine"))
    assert benchmarks_main.main() == 1
    printed = capsys.readouterr().out
    assert "p2: could not be measured: RuntimeError: no run" in printed
    assert "P8 is fine" in printed
    assert "cores" in printed.splitlines()[0], "the machine comes first"


def test_clients_of_p4_need_no_torch() -> None:
    code = "import sys, benchmarks.__main__; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


def test_settings_are_flags_that_the_configuration_takes() -> None:
    argument_lists = [
        throughput.Settings(256).arguments(),
        atari_shaped.Settings().arguments(),
        scaling.Settings().arguments(32),
        *(kind.arguments(16, 2) for kind in actor_rates.KINDS),
    ]
    for words in argument_lists:
        overrides = [word for flag, word in itertools.pairwise(words) if flag == "--set"]
        assert overrides
        load_config(None, overrides)
