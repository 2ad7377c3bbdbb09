"""Films one environment of a run for `shoal eval --video`: the pictures that it renders, as an mp4 file.

The environment is made as for training, with the same wrappers and preprocessing, but alone and in this
process, with `render_mode` rgb_array. Frames go to ffmpeg one by one; a file gets its name when it is whole.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from shoal.cli.requirements import require
from shoal.config.tree import EnvSection, WrapperSection
from shoal.envs.batch import BatchEnv
from shoal.envs.sources import find_source
from shoal.errors import UserError
from shoal.evaluation import Player
from shoal.imports import load_attribute

RENDER_MODE = "render_mode"
# A policy that never ends its episode must not fill the disk.
MAX_FRAMES = 20_000
_DEFAULT_FPS = 30.0
_ATARI_FPS = 60.0
_FILMED = "shoal.envs.recording:Filmed"


@dataclass(frozen=True)
class Film:
    """A file, and what is on it."""

    path: Path
    num_episodes: int
    num_frames: int
    fps: float

    def record(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "episodes": self.num_episodes,
            "frames": self.num_frames,
            "fps": self.fps,
        }

    def lines(self) -> Iterator[str]:
        episodes = "1 episode" if self.num_episodes == 1 else f"{self.num_episodes} episodes"
        yield f"video: {self.path}, {episodes}, {self.num_frames:,} frames at {self.fps:g} per second"
        if self.num_frames >= MAX_FRAMES:
            yield f"the video ends after {MAX_FRAMES:,} frames, before its last episode does"


class Writer(Protocol):
    """Of one video file."""

    def append_data(self, frame: np.ndarray) -> None: ...

    def close(self) -> None: ...


def film(
    section: EnvSection,
    make: Callable[[EnvSection, int], BatchEnv],
    players: Callable[[BatchEnv], Mapping[str, Player]],
    path: Path,
    num_episodes: int,
    seed: int,
) -> Film:
    """Plays and films. `make` makes the environment, `players` gives those who play it. Raises UserError."""
    open_writer = _writer_factory(path)
    # Nothing is shown on a screen: without this SDL complains where there is none.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    temporary = path.with_name(f".tmp-{path.name}")
    camera = VideoCamera(section.id, partial(open_writer, temporary), num_episodes)
    try:
        env = make(renderable(section, camera), 1)
        try:
            _play(env, players(env), camera, seed)
        finally:
            env.close()
            camera.close()
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return Film(path, min(camera.num_begun, num_episodes), camera.num_frames, camera.fps)


def renderable(section: EnvSection, camera: object) -> EnvSection:
    """The section of one environment that can be filmed, with `camera` on it. Raises UserError."""
    single = section.model_copy(update={"vectorization": "sync"})
    if find_source(single).make_one is None:
        raise UserError(
            f"cannot film {section.id!r}: it is only made as a batch, which renders no single one"
        )
    kwargs = dict(section.kwargs)
    if _takes_render_mode(section.id):
        kwargs[RENDER_MODE] = "rgb_array"
    filmed = WrapperSection(path=_FILMED, kwargs={"camera": camera})
    return single.model_copy(update={"kwargs": kwargs, "wrappers": (*section.wrappers, filmed)})


class VideoCamera:
    """Writes the frames of so many episodes; afterwards it looks away."""

    def __init__(self, env_id: str, open_writer: Callable[[float], Writer], num_episodes: int) -> None:
        """`open_writer` is called with the frames per second, once the first frame is there."""
        self._env_id = env_id
        self._open_writer = open_writer
        self._num_episodes = num_episodes
        self._writer: Writer | None = None
        self._shape: tuple[int, ...] = ()
        self.problem: UserError | None = None
        self.num_begun = 0
        self.num_frames = 0
        self.fps = _DEFAULT_FPS

    @property
    def is_done(self) -> bool:
        return self.num_begun > self._num_episodes or self.num_frames >= MAX_FRAMES

    def begin_episode(self, env: Any) -> None:
        if self.num_begun == 0:
            self.fps = frames_per_second(env)
        self.num_begun += 1

    def take(self, picture: Any) -> None:
        if self.is_done:
            return
        frame = self._checked(picture)
        if self._writer is None:
            self._shape = frame.shape
            self._writer = self._open_writer(self.fps)
        elif frame.shape != self._shape:
            raise ValueError(f"a picture of {list(frame.shape)} after one of {list(self._shape)}")
        self._writer.append_data(frame)
        self.num_frames += 1

    def fail(self, error: Exception) -> None:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        self.problem = UserError(f"cannot film {self._env_id!r}: {reason}")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _checked(self, picture: Any) -> np.ndarray:
        frame = np.asarray(picture)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            what = "nothing" if picture is None else f"{frame.dtype}{list(frame.shape)}"
            raise ValueError(
                f"render() gave {what}, not uint8[height, width, 3]: it needs the render_mode rgb_array, as "
                "a parameter of your function or class"
            )
        # Most players show only pictures with even sides.
        return np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")


def frames_per_second(env: Any) -> float:
    """As the environment says. Of an Atari game with frames left out, as many as make it run at its speed."""
    said = (getattr(env, "metadata", None) or {}).get("render_fps")
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.AtariPreprocessing):
            return _ATARI_FPS / env.frame_skip
        env = env.env
    return float(said) if isinstance(said, int | float) and said > 0 else _DEFAULT_FPS


def _play(env: BatchEnv, players: Mapping[str, Player], camera: VideoCamera, seed: int) -> None:
    shown = env.reset(seed)
    while camera.problem is None and not camera.is_done:
        shown = env.step({name: player.act(shown[name]) for name, player in players.items()})
    if camera.problem is not None:
        raise camera.problem


def _takes_render_mode(env_id: str) -> bool:
    """Registered environments do by Gymnasium's rules; a function or class of the user's own may."""
    where, _, name = env_id.rpartition(":")
    if not where or not name.isidentifier():
        return True
    try:
        factory = load_attribute(env_id, "env.id")
    except UserError:  # it was found, so that the name is one that the module registered
        return True
    try:
        parameters = inspect.signature(factory).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):  # some builtins and extension types have none to show
        return False
    return any(p.name == RENDER_MODE or p.kind is p.VAR_KEYWORD for p in parameters)


def _writer_factory(path: Path) -> Callable[[Path, float], Writer]:
    """What opens video files. Raises UserError, before anything is played."""
    if path.suffix != ".mp4":
        raise UserError(f"--video {path}: the name of the file must end in .mp4")
    if not path.parent.is_dir():
        raise UserError(f"--video {path}: there is no directory {path.parent}")
    require("--video", ("imageio", "imageio_ffmpeg"), "video")
    import imageio.v2 as imageio

    return lambda file, fps: imageio.get_writer(file, format="FFMPEG", fps=fps, macro_block_size=1)
