"""The `device` and `threads` settings."""

from __future__ import annotations

import pytest
import torch

from shoal.algorithms.apex.profile import ApexConfig
from shoal.algorithms.appo.profile import AppoConfig
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.ppo.profile import PpoConfig
from shoal.algorithms.sac.profile import SacConfig
from shoal.algorithms.settings import AlgorithmSection
from shoal.errors import UserError
from shoal.policy.device import cpu_threads, fitting_threads, pick_device, products_per_row


def test_auto_is_the_cpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto", "inference.device") == torch.device("cpu")
    assert pick_device("cpu", "inference.device") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_gpu_that_is_not_there_is_an_error_that_names_the_setting(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"inference\.device is 'cuda.*0 GPUs.*'cpu' or 'auto'"):
        pick_device(name, "inference.device")


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto", "learner.device").type == "cuda"
    assert pick_device("cuda:1", "learner.device") == torch.device("cuda:1")
    with pytest.raises(UserError, match="2 GPUs"):
        pick_device("cuda:2", "learner.device")


@pytest.mark.parametrize(
    ("setting", "part", "share", "num_cpus", "expected"),
    [
        (0, 0.5, 1, 8, 4),
        (0, 0.5, 2, 8, 2),
        (0, 0.5, 3, 8, 1),
        (0, 0.5, 8, 8, 1),
        (0, 0.5, 1, 1, 1),
        (0, 0.5, 1, 3, 1),
        (0, 1.0, 1, 8, 8),
        (0, 1.0, 3, 8, 2),
        (6, 0.5, 1, 2, 6),
        (6, 1.0, 3, 2, 6),
    ],
)
def test_threads_are_a_part_of_the_cpus_that_we_may_use_unless_set(
    setting: int, part: float, share: int, num_cpus: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.policy.device.num_cpus", lambda: num_cpus)
    assert cpu_threads(setting, part, share) == expected


@pytest.mark.parametrize(
    ("section", "learner", "inference"),
    [
        (ImpalaConfig(), 0.5, 0.5),
        (AppoConfig(), 0.5, 0.5),
        (PpoConfig(), 1.0, 1.0),
        (PpoConfig(synchronous=False), 0.5, 0.5),
        (SacConfig(), 1.0, 0.5),
        (ApexConfig(), 1.0, 0.5),
    ],
)
def test_who_computes_alone_has_all_cpus(section: AlgorithmSection, learner: float, inference: float) -> None:
    assert (section.learner_cpus, section.inference_cpus) == (learner, inference)


@pytest.mark.parametrize(
    ("network", "num_rows", "expected"),
    [
        # Of PPO and of SAC with their defaults.
        (torch.nn.Linear(64, 64), 256, 1),
        (torch.nn.Linear(256, 256), 256, 8),
        (torch.nn.Linear(256, 256), 8, 1),
        (torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3), torch.nn.Linear(4, 4)), 1, 8),
    ],
)
def test_small_passes_are_not_shared(network: torch.nn.Module, num_rows: int, expected: int) -> None:
    assert fitting_threads(8, products_per_row(network) * num_rows) == expected
