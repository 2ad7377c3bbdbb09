"""For the tests of services only."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _peers_may_be_slow_to_answer_a_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has to wait for a processor is there all the same."""
    monkeypatch.setattr("shoal.rpc.channel.CONNECT_TIMEOUT_MS", 30_000)
