"""An encoder of the user's own: what it is given, and every way it can be wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from shoal.config.network import PolicySection
from shoal.errors import UserError
from shoal.policy.network import Choice, build_policy
from shoal.policy.own_encoder import OwnEncoder
from shoal.records import DiscreteAction
from tests.unit.policy.stepping import (
    CPU,
    MIXED,
    episode_starts,
    mask_of,
    observe,
    random_state,
    spec_of,
)

PAGE = Path(__file__).resolve().parents[3] / "docs/networks.md"

SOURCE = """
import torch
from torch import nn

class Levels(nn.Module):
    def __init__(self, observation, num_features=3):
        super().__init__()
        self.seen = [(array.name, array.dtype, array.shape) for array in observation]
        self.num_features = num_features
        self.layer = nn.Linear(1, num_features)

    def forward(self, observation):
        self.given = {name: tuple(tensor.shape) for name, tensor in observation.items()}
        level = observation["observation.level"].float()
        return self.layer(level.reshape(len(level), -1)[:, -1:])

class Dropping(Levels):
    def forward(self, observation):
        assert not self.training
        return super().forward(observation)

not_callable = 7
def raises(observation): return 1 / 0
def no_module(observation): return "features"
def no_width(observation): return nn.Identity()
def too_wide(observation): return Levels(observation, 1 << 30) if False else _wide()
def _wide():
    module = nn.Identity()
    module.num_features = 1 << 30
    return module
class Wrong(Levels):
    def forward(self, observation): return torch.zeros(5)
class Failing(Levels):
    def forward(self, observation): return observation["nothing"]
class List(Levels):
    def forward(self, observation): return [1, 2]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return str(path)


def test_it_sees_all_arrays_but_the_mask_and_leading_dimensions_are_one(file: str) -> None:
    spec = spec_of(DiscreteAction(2), *MIXED, mask_of(2))
    config = PolicySection(network=f"{file}:Levels", network_kwargs={"num_features": 6}, frame_stack=2)
    policy = build_policy(config, spec)
    encoder = policy.trunk.encoder
    assert isinstance(encoder, OwnEncoder)
    assert encoder.num_features == 6
    assert encoder.module.seen == [
        ("observation.frame", "uint8", (2, 2, 3)),
        ("observation.kind", "int64", (2,)),
        ("observation.level", "float64", (2,)),
    ]
    policy.act(observe(spec, 5), torch.ones(5, dtype=torch.bool), policy.initial_state(5, CPU), Choice())
    given = {"observation.frame": (2, 2, 3), "observation.kind": (2,), "observation.level": (2,)}
    assert encoder.module.given == {name: (5, *shape) for name, shape in given.items()}
    policy(observe(spec, 6, 5), episode_starts(6, 5), random_state(policy, 5))
    assert encoder.module.given == {name: (30, *shape) for name, shape in given.items()}


def test_it_is_tried_as_when_acting_and_trains_afterwards(file: str) -> None:
    policy = build_policy(PolicySection(network=f"{file}:Dropping"), spec_of(DiscreteAction(2), *MIXED))
    assert all(module.training for module in policy.modules())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "has no 'gone'"),
        ("not_callable", "no function but int"),
        ("raises", "it raised: ZeroDivisionError"),
        ("no_module", r"returned str, not a torch\.nn\.Module"),
        ("no_width", "needs `num_features`, an int .* has None"),
        ("too_wide", "from 1 to 1048576, and has 1073741824"),
        ("Wrong", r"gave \[5\] for 2 observations, and `num_features` promises \[2, 3\]"),
        ("Failing", "forward failed on 2 observations of zeros: KeyError"),
        ("List", r"gave list for 2 observations"),
    ],
)
def test_what_is_wrong_with_it_is_said_in_one_line(file: str, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        build_policy(PolicySection(network=f"{file}:{name}"), spec_of(DiscreteAction(2), *MIXED))
    assert "policy.network" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_arguments_that_it_does_not_take_are_the_users_error(file: str) -> None:
    config = PolicySection(network=f"{file}:Levels", network_kwargs={"num_feature": 6})
    with pytest.raises(UserError, match=r"TypeError.*num_feature"):
        build_policy(config, spec_of(DiscreteAction(2), *MIXED))


def test_the_example_of_the_page_works(tmp_path: Path) -> None:
    sources = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(sources) == 1
    (tmp_path / "encoder.py").write_text(sources[0])
    settings = {"network": f"{tmp_path}/encoder.py:build", "network_kwargs": {"size": 32}}
    spec = spec_of(DiscreteAction(3), *MIXED)
    policy = build_policy(PolicySection.model_validate(settings), spec)
    params, value = policy(observe(spec, 4, 5), episode_starts(6, 5)[:4], {})
    assert params.shape == (4, 5, 3)
    value.sum().backward()
    assert all(parameter.grad is not None for parameter in policy.trunk.parameters())
