"""P12: the bare updates are real ones, ratios are against the best of the others, a missing peer is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import bare_off_policy, off_policy, peer_venv


@pytest.mark.parametrize("algorithm", bare_off_policy.ALGORITHMS)
@pytest.mark.parametrize("kind", [bare_off_policy.Separate, bare_off_policy.Batched])
def test_a_bare_update_moves_all_networks(algorithm: str, kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    update = bare_off_policy.ALGORITHMS[algorithm](kind())
    assert isinstance(update, bare_off_policy.Update)
    networks = nn.ModuleList([update.actor, update.critics, update.target])
    before = {name: tensor.clone() for name, tensor in networks.named_parameters()}
    batch = bare_off_policy.made_up_transitions()
    for _ in range(2):
        update(batch)
    for name, tensor in networks.named_parameters():
        assert bool(tensor.isfinite().all()), name
        assert not torch.equal(tensor, before[name]), name
    assert all(parameter.requires_grad for parameter in update.critics.parameters())


def test_ratios_of_off_policy_updates_are_against_the_best_of_the_others() -> None:
    measured = off_policy.Round(120.0, bare={1: 90.0, 2: 150.0}, sb3={1: 80.0, 2: 60.0})
    assert measured.share == pytest.approx(0.8)
    assert measured.against_sb3 == pytest.approx(1.5)
    assert off_policy.Round(120.0, bare={1: 90.0}, sb3={}).against_sb3 is None


def test_what_does_not_install_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(peer_venv.PeerMissingError, match="failed: ") as caught:
        peer_venv.install("Peer", tmp_path / "venv", "/bin/false", [], "peer")
    assert "\n" not in str(caught.value)
