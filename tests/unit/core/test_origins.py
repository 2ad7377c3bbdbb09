"""Where each value of the effective configuration comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.algorithms.profile import Task
from shoal.algorithms.profiles import PROFILES
from shoal.config.load import Layers, load_layers


def origins(layers: Layers, task: Task | None = None) -> dict[str, tuple[object, str]]:
    config = layers.config(task)
    found = [(key, (value, origin)) for key, value, origin in layers.origins(config, task)]
    assert len(dict(found)) == len(found), "a key stands once"
    return dict(found)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "env: {id: Mine-v0}\n"
        "algorithm: {name: sac, discount: 0.9}\n"
        "actor: {envs: 2}\n"
        "replay: {tables: {train: {max_items: 5000}}}\n"
    )
    return path


def test_each_kind_of_origin(file: Path) -> None:
    environ = {"SHOAL__LEARNER__THREADS": "3", "SHOAL__ACTOR__ENVS": "6"}
    sets = ["algorithm.updates_per_step=0.5", "replay.tables.train.alpha=0.25"]
    found = origins(load_layers(file, sets, environ))
    expected = {
        "algorithm.updates_per_step": (0.5, "flag"),
        "replay.tables.train.alpha": (0.25, "flag"),
        "learner.threads": (3, "environment"),
        "actor.envs": (6, "environment"),
        "env.id": ("Mine-v0", str(file)),
        "algorithm.name": ("sac", str(file)),
        "replay.tables.train.max_items": (5000, str(file)),
        "algorithm.learning_rate": (1e-3, "profile sac"),
        "policy.hidden_sizes": ([256, 256], "profile sac"),
        "learner.batch_envs": (256, "profile sac"),
        "replay.tables.train.kind": ("transition", "derived"),
        "replay.tables.train.discount": (0.9, "derived"),
        "replay.tables.train.samples_per_insert": (128.0, "derived"),
        "policy.kind": ("soft_actor_critic", "derived"),
        "run.seed": (found["run.seed"][0], "default"),
        "algorithm.reward_scale": (1.0, "default"),
    }
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("has_images", [None, False, True])
def test_every_value_is_there_with_its_own(name: str, has_images: bool | None) -> None:
    action = sorted(PROFILES[name].actions)[0]
    task = None if has_images is None else Task(action, has_images)
    layers = load_layers(None, [f"algorithm.name={name}"], {})
    found = origins(layers, task)
    config = layers.config(task)
    assert found["learner.batch_envs"][0] == config.learner.batch_envs
    assert {origin for _, origin in found.values()} == {"flag", "derived", f"profile {name}", "default"}
    assert [key for key, (_, origin) in found.items() if origin == "flag"] == ["algorithm.name"]
    # The same values without the algorithm's profile, as far as it brings them.
    for key, (value, origin) in found.items():
        if origin == f"profile {name}":
            tree: object = PROFILES[name].tree(task)
            for part in key.split("."):
                assert isinstance(tree, dict)
                tree = tree[part]
            assert value == tree, key


def test_what_follows_from_a_profile_is_derived_until_it_is_set() -> None:
    layers = load_layers(None, ["launch.actors=2"], {})
    assert origins(layers)["learner.batch_envs"] == (128, "derived")
    layers = load_layers(None, ["launch.actors=2", "learner.batch_envs=64"], {})
    assert origins(layers)["learner.batch_envs"] == (64, "flag")


def test_no_secret_is_among_them() -> None:
    found = origins(load_layers(None, [], {"SHOAL__SECURITY__TOKEN": "very-secret"}))
    assert "security.token" not in found
    assert "very-secret" not in str(found)
