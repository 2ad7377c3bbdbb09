"""A flipped bit or a cut at every percent of a shard's files: the rest is there, nothing false is served.

The files are those of a real shard. Recovery runs in this process for most cases, in a real one for some.
What a case may cost is known before: the items of the frames that the damage touches, and not one more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shoal.clients.replay_shard import Append, Outcome
from shoal.journal import framing
from shoal.records import Life
from tests.chaos.damage import Damage, copy_of, every_percent
from tests.chaos.faults import VictimShard, files_of, table_states
from tests.chaos.model import AckedLog, StoredItem
from tests.chaos.run import holds, run
from tests.chaos.traffic import Samplers, Writers, client_of, payload
from tests.chaos.validate import TABLE, dump, recovered
from tests.service.replay_server import shard_processes, until

NUM_APPENDS = 150
# Cases whose recovery is repeated on its own result, and those done by a real process.
REPEAT_EVERY = 10
REAL_EVERY = 67

SMALL: dict[str, object] = {"segment_bytes": 1 << 15, "max_items": 1 << 12}
MODES: dict[str, dict[str, object]] = {
    "wal": {"durability": "wal", **SMALL},
    "snapshots": {"durability": "memory", "snapshot_every_s": 0.1, **SMALL},
}

Items = dict[int, tuple[int, ...]]


@dataclass
class Tally:
    """Over all cases."""

    num_cases: int = 0
    num_corrupt: int = 0
    # Beyond what the damage touched.
    num_missing: int = 0
    most_lost: int = 0
    silent: list[str] = field(default_factory=list)

    def add(self, damage: Damage, original: Items, found: Items, touched: set[int]) -> None:
        self.num_cases += 1
        self.num_corrupt += sum(original.get(key) != crcs for key, crcs in found.items())
        missing = original.keys() - found.keys()
        self.num_missing += len(missing - touched)
        self.most_lost = max(self.most_lost, len(missing))

    def __str__(self) -> str:
        return (
            f"{self.num_cases} cases: corrupt items served {self.num_corrupt}, lost beyond the frames "
            f"that were hit {self.num_missing}, most lost in a case {self.most_lost}, "
            f"without a message {len(self.silent)}"
        )


def by_key(items: list[StoredItem]) -> Items:
    return {item.key: item.crcs for item in items}


@dataclass(frozen=True)
class Origin:
    """The directory of a real shard, as `kill -9` left it, and what a shard recovers from it undamaged."""

    directory: Path
    whole: Items


def has_all(shard: VictimShard, num_items: int) -> bool:
    """Whether a snapshot was taken since the last item came."""
    return any(len(state.keys) >= num_items for _, state in table_states(shard.data))


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Origin]:
    async def make(mode: str) -> Origin:
        tmp_path = tmp_path_factory.mktemp("origin")
        log, shard = AckedLog(), VictimShard(tmp_path, table=MODES[mode])
        async with shard_processes(shard):
            async with Writers(shard.address, log) as writers, Samplers(shard.address, pause_s=0.02):
                await until(lambda: holds(len(log.acked) >= NUM_APPENDS))
                await writers.pause()
            if mode == "snapshots":
                await until(lambda: holds(has_all(shard, len(log.acked))))
            shard.kill()
        whole, lines = await recovered(shard.data)
        assert len(whole) >= NUM_APPENDS
        assert not lines
        return Origin(shard.data, by_key(whole))

    return {mode: asyncio.run(make(mode)) for mode in MODES}


@pytest.mark.parametrize("mode", MODES)
def test_damage_at_every_percent(tmp_path: Path, origins: dict[str, Origin], mode: str) -> None:
    async def test() -> None:
        original, whole = origins[mode].directory, origins[mode].whole
        tally, example = Tally(), ""
        for number, damage in enumerate(every_percent(original)):
            touched = damage.keys_touched(original)
            case = copy_of(original, tmp_path / "case")
            damage.do(case)
            items, lines = await recovered(case)
            found = by_key(items)
            tally.add(damage, whole, found, touched)
            if damage.bit is not None and not any(Path(damage.file).name in line for line in lines):
                tally.silent.append(str(damage))
            if number % REPEAT_EVERY == 0:
                again, _ = await recovered(case)
                assert by_key(again) == found, f"{damage}: another start finds something else"
            example = lines[0] if lines else example
        print(f"{mode}: {len(whole)} items in {len(files_of(original))} files, {tally}; e.g. {example!r}")
        assert tally.num_corrupt == 0
        assert tally.num_missing == 0
        assert not tally.silent, tally.silent

    run(test)


@pytest.mark.parametrize("mode", MODES)
def test_a_real_shard_starts_on_damaged_files_serves_and_starts_again(
    tmp_path: Path, origins: dict[str, Origin], mode: str
) -> None:
    async def test() -> None:
        original, whole = origins[mode].directory, origins[mode].whole
        tally = Tally()
        for number, damage in enumerate(list(every_percent(original))[::REAL_EVERY]):
            shard = VictimShard(tmp_path, f"case-{number}", table=MODES[mode] | {"durability": "wal"})
            damage.do(copy_of(original, shard.data))
            async with shard_processes(shard):
                async with client_of(shard.address) as client:
                    found = by_key(await dump(client))
                    stream = await client.open_append(Life("new", "run"), TABLE)
                    await stream.send(Append(0, (payload(9, number),)))
                    assert (await stream.receive()).outcome is Outcome.STORED
                    await stream.close()
                shard.kill()
                await shard.start()
                async with client_of(shard.address) as client:
                    again = by_key(await dump(client))
            tally.add(damage, whole, found, damage.keys_touched(original))
            assert len(again) == len(found) + 1
            assert found.items() <= again.items()
            assert "Traceback" not in shard.log
            if damage.bit is not None and Path(damage.file).name not in shard.log:
                tally.silent.append(str(damage))
        print(f"{mode}, real processes, each started twice: {tally}")
        assert tally.num_corrupt == tally.num_missing == 0
        assert not tally.silent, tally.silent

    run(test)


def test_control_without_the_crc_of_frames_corrupt_items_are_served(
    tmp_path: Path, origins: dict[str, Origin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "_is_whole", lambda data, crc: True)

    async def test() -> None:
        original, whole = origins["wal"].directory, origins["wal"].whole
        tally = Tally()
        # Those in the middle of an item: a damaged record may be anything, also an error.
        for damage in list(every_percent(original))[20::16]:
            case = copy_of(original, tmp_path / "case")
            damage.do(case)
            try:
                tally.add(damage, whole, by_key((await recovered(case))[0]), set())
            except Exception as error:
                print(f"control: {damage}: {type(error).__name__}")
        print(f"control, CRC not checked: {tally}")
        assert tally.num_corrupt > 0

    run(test)
