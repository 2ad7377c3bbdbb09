"""Read amplification per kind of table: bytes that are sent to a learner for each byte that it trains on.

Counted in decoded bytes, which are the same for every codec; the bytes on the wire stand beside them. The
control is what a learner of single transitions would be sent by a table of unrolls: that is what transition
tables are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import replay_traffic as traffic
from benchmarks.console import print_table
from benchmarks.replay_data import raw_bytes
from benchmarks.replay_rig import LIMITS, OPEN, RPC, TABLE, shards
from shoal.records import Trajectory
from shoal.rpc.channel import open_channel
from shoal.v1 import replay_service_pb2 as pb
from shoal.v1 import replay_service_pb2_grpc as pb_grpc
from shoal.wire import columns_from_proto, decode_sequence, decode_trajectory, encode_trajectory

KINDS: dict[str, dict[str, object]] = {
    "queue": {"kind": "queue", "max_items": 1 << 20},
    "sequence, 1 unroll": {"kind": "sequence"},
    "sequence, 4 unrolls, 2 shared": {"kind": "sequence", "unrolls": 4, "overlap_unrolls": 2},
    "transition, 3 steps": {"kind": "transition", "n_step": 3},
}


@dataclass(frozen=True)
class Traffic:
    """Bytes of one answer: on the wire, decoded, and of those what is trained on."""

    wire: int
    decoded: int
    used: int


async def measure(directory: Path, trajectories: Sequence[Trajectory]) -> None:
    """`trajectories`: consecutive unrolls of a few envs."""
    payloads = [encode_trajectory(trajectory) for trajectory in trajectories]
    rows = []
    for number, (title, table) in enumerate(KINDS.items()):
        async with shards(directory / f"amplification-{number}", table | {"max_bytes": 8 << 30}) as servers:
            await traffic.fill(servers, payloads, len(payloads))
            found = await _sample_once(servers[0].address)
        rows.append([title, *_figures(found)])
    unroll = trajectories[0]
    decoded = raw_bytes(unroll)
    # One transition: two of T + 1 rows.
    used = decoded * 2 // (unroll.unroll_length + 1)
    control = Traffic(len(payloads[0]), decoded, used)
    rows.append(["(control) single transitions, by unrolls", *_figures(control)])
    header = ["table", "wire kB", "decoded kB", "used kB", "decoded/used", "wire/used"]
    note = f"CartPole, T = {unroll.unroll_length}; one answer with up to {traffic.BATCH} items."
    print_table("Read amplification", header, rows, [note])


async def _sample_once(address: traffic.Address) -> Traffic:
    channel = open_channel(address, OPEN, LIMITS, RPC)
    try:
        call = pb_grpc.ReplayServiceStub(channel).Sample()
        await call.write(pb.SampleRequest(table=TABLE, num_items=traffic.BATCH))
        answer = await call.read()
        call.cancel()
    finally:
        await channel.close()
    if answer.HasField("transitions"):
        columns = columns_from_proto(answer.transitions.columns, LIMITS.max_tensor_bytes)
        decoded = used = sum(column.nbytes for column in columns.values())
    else:
        payloads = [item.trajectories for item in answer.items]
        decoded = sum(raw_bytes(decode_trajectory(part, LIMITS)) for parts in payloads for part in parts)
        used = sum(raw_bytes(decode_sequence(list(parts), LIMITS)) for parts in payloads)
    return Traffic(answer.ByteSize(), decoded, used)


def _figures(found: Traffic) -> list[str]:
    sizes = [f"{part / 1e3:.1f}" for part in (found.wire, found.decoded, found.used)]
    return [*sizes, f"{found.decoded / found.used:.2f}", f"{found.wire / found.used:.2f}"]
