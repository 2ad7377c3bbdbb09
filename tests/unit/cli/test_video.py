"""`shoal eval --video`: every frame of the episodes asked for, and one line for what cannot be filmed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest

from shoal.cli import video
from shoal.cli.app import run
from shoal.cli.video import VideoCamera, frames_per_second
from tests.unit.cli.saved_runs import config_of, save_run

ENVS = Path(__file__).with_name("filmed_env.py")


def save(tmp_path: Path, name: str, *overrides: str) -> str:
    return str(save_run(tmp_path / "run", config_of(f"env.id={ENVS}:{name}", *overrides)))


def brightness(path: Path) -> list[int]:
    """Of every frame in the file."""
    decoded = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
        capture_output=True,
        check=True,
    )
    # Even sides, as most players need them.
    frames = np.frombuffer(decoded.stdout, np.uint8).reshape(-1, 32, 48, 3)
    return [int(frame.mean()) for frame in frames]


@pytest.mark.parametrize("num_episodes", [1, 2])
def test_all_frames_of_the_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], num_episodes: int
) -> None:
    root, path = save(tmp_path, "Countdown", "env.vectorization=sync"), tmp_path / "out.mp4"
    arguments = ["--episodes", "3", "--video", str(path), "--video-episodes", str(num_episodes), "--json"]
    assert run(["eval", root, *arguments]) == 0
    record = json.loads(capsys.readouterr().out)
    frames = 5 * num_episodes
    assert record["video"] == {"path": str(path), "episodes": num_episodes, "frames": frames, "fps": 10.0}
    assert record["policies"]["policy"]["returns"] == [4.0] * 3, "the evaluation is one of its own"
    np.testing.assert_allclose(brightness(path), [0, 40, 80, 120, 160] * num_episodes, atol=3)
    assert {file.name for file in tmp_path.iterdir()} == {"run", "out.mp4"}


def test_the_table_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, path = save(tmp_path, "Countdown"), tmp_path / "out.mp4"
    assert run(["eval", root, "--episodes", "1", "--video", str(path)]) == 0
    assert f"video: {path}, 1 episode, 5 frames at 10 per second\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("Countdown", "out.avi", "must end in .mp4"),
        ("Countdown", "none/out.mp4", "there is no directory"),
        ("blind", "out.mp4", "cannot film .*blind.*gave nothing.*needs the render_mode rgb_array"),
        ("batch", "out.mp4", "cannot film .*batch.* it is only made as a batch"),
        ("broken", "out.mp4", "cannot film .*broken.*ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_filmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, file: str, message: str
) -> None:
    root = save(tmp_path, name)
    assert run(["eval", root, "--video", str(tmp_path / file)]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert re.search(message, text), text
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert not list((tmp_path / "run").glob("eval-*")), "said before anything is played"


@pytest.mark.parametrize("missing", ["imageio", "imageio_ffmpeg"])
def test_without_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    root = save(tmp_path, "Countdown")
    for module in (missing, f"{missing}.v2"):
        monkeypatch.setitem(sys.modules, module, None)
    assert run(["eval", root, "--video", str(tmp_path / "out.mp4")]) == 2
    assert capsys.readouterr().err.endswith(f"--video needs {missing}: pip install 'shoal[video]'\n")


def film(tmp_path: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, Any]:
    root = str(save_run(tmp_path / "run", config_of(*overrides)))
    arguments = ["--episodes", "1", "--video", str(tmp_path / "out.mp4"), "--json"]
    assert run(["eval", root, *arguments]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_an_atari_game_with_its_preprocessing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limit = "env.wrappers=[{path: 'gymnasium.wrappers:TimeLimit', kwargs: {max_episode_steps: 12}}]"
    seen = ("policy.frame_stack=2", "policy.network=mlp", "policy.normalise_observations=false")
    record = film(tmp_path, capsys, "env.id=ALE/Pong-v5", limit, *seen)
    assert record["video"]["frames"] == 13
    assert record["video"]["fps"] == 15.0, "four frames of sixty make a step"


def test_a_game_of_several_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One film of all agents to the end of the game; an episode of each agent of each policy."""
    policies = "env.policies={red: ['red_*'], blue: ['blue_*']}"
    record = film(tmp_path, capsys, f"env.id={ENVS}:Duel", policies)
    assert (record["video"]["frames"], record["video"]["fps"]) == (7, 20.0)
    np.testing.assert_allclose(brightness(tmp_path / "out.mp4"), range(0, 140, 20), atol=3)
    returns = {policy: scores["returns"] for policy, scores in record["policies"].items()}
    assert returns == {"red": [6.0, 6.0], "blue": [3.0]}
    assert record["checkpoints"] == {"blue": "000001-step-5", "red": "000001-step-5"}


class Frames(list[np.ndarray]):
    """In the place of a file."""

    append_data = list.append
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_an_endless_episode_ends_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = Frames()
    monkeypatch.setattr(video, "MAX_FRAMES", 7)
    camera = VideoCamera("x", lambda fps: frames, 1)
    camera.begin_episode(object())
    picture = np.zeros((4, 4, 3), np.uint8)
    while not camera.is_done:
        camera.take(picture)
    camera.take(picture)
    camera.close()
    assert (len(frames), camera.num_frames, frames.is_closed) == (7, 7, True)


def test_pictures_of_changing_size_are_no_video() -> None:
    frames = Frames()
    camera = VideoCamera("x", lambda fps: frames, 1)
    camera.begin_episode(object())
    camera.take(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match=r"a picture of \[6, 4, 3\] after one of \[4, 4, 3\]"):
        camera.take(np.zeros((6, 4, 3), np.uint8))


def test_speed() -> None:
    pong = gym.Env[np.ndarray, int]()
    assert frames_per_second(pong) == 30.0
    pong.metadata = {"render_fps": 50}
    assert frames_per_second(pong) == 50.0
    atari = object.__new__(gym.wrappers.AtariPreprocessing)
    gym.Wrapper.__init__(atari, pong)
    atari.frame_skip = 4
    assert frames_per_second(gym.Wrapper(atari)) == 15.0
