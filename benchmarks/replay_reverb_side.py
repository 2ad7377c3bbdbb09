"""Reverb's side of the replay benchmark. Runs under a Python of its own and imports nothing of shoal.

`benchmarks.replay_reverb` starts it. `serve` is a Reverb server as a process. `drive PORT DATA.npz` is the
client: it reads commands from standard input, such as `insert small 3.0`, and answers each with one line of
JSON. What is inserted is what shoal inserts: unrolls in columns, `<item kind>/<number>/<column>` in the file.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np

MAX_ITEMS = 50_000
BATCH = 256
# Items on their way at most, as in Reverb's own examples.
MAX_IN_FLIGHT = 512


def serve():
    import reverb

    tables = [
        reverb.Table(
            name=name,
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=MAX_ITEMS,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        for kind in ("small", "pong")
        for name in (f"{kind}_steps", f"{kind}_whole")
    ]
    server = reverb.Server(tables, port=None)
    print(json.dumps({"port": server.port}), flush=True)
    # Until the benchmark closes its end or ends.
    sys.stdin.read()
    server.stop()


class Driver:
    """One client with one writer, and one reader by Reverb's own dataset."""

    def __init__(self, port, path):
        import reverb

        self._reverb = reverb
        self._address = f"127.0.0.1:{port}"
        self._client = reverb.Client(self._address)
        self._items = _load(path)

    def insert(self, kind, way, seconds):
        """`steps`: row by row, as its documentation shows. `whole`: an unroll as one step: cheaper."""
        items, table = self._items[kind], f"{kind}_{way}"
        insert = self._insert_steps if way == "steps" else self._insert_whole
        began = time.perf_counter()
        num_items = insert(items, table, began + seconds)
        return self._result(items, num_items, began)

    def _insert_steps(self, items, table, end):
        length = len(next(iter(items[0].values())))
        num_items = 0
        with self._client.trajectory_writer(num_keep_alive_refs=length) as writer:
            while time.perf_counter() < end:
                item = items[num_items % len(items)]
                for t in range(length):
                    writer.append({name: column[t] for name, column in item.items()})
                writer.create_item(
                    table=table,
                    priority=1.0,
                    trajectory={name: writer.history[name][-length:] for name in item},
                )
                num_items += 1
                # Bounds what is on its way, as shoal's writer does.
                writer.flush(block_until_num_items=MAX_IN_FLIGHT)
                writer.end_episode(clear_buffers=True) if num_items % 64 == 0 else None
            writer.flush()
        return num_items

    def _insert_whole(self, items, table, end):
        num_items = 0
        with self._client.trajectory_writer(num_keep_alive_refs=1) as writer:
            while time.perf_counter() < end:
                item = items[num_items % len(items)]
                writer.append(item)
                writer.create_item(
                    table=table,
                    priority=1.0,
                    trajectory={name: writer.history[name][-1:] for name in item},
                )
                num_items += 1
                writer.flush(block_until_num_items=MAX_IN_FLIGHT)
            writer.flush()
        return num_items

    def sample(self, kind, way, seconds):
        """Batches by its dataset; every array is touched so that it is there, decoded."""
        import tensorflow as tf

        items, table = self._items[kind], f"{kind}_{way}"
        lead = (1,) if way == "whole" else ()
        shapes = {name: tf.TensorShape((*lead, *column.shape)) for name, column in items[0].items()}
        dtypes = {name: tf.as_dtype(column.dtype) for name, column in items[0].items()}
        dataset = self._reverb.TrajectoryDataset(
            server_address=self._address,
            table=table,
            dtypes=dtypes,
            shapes=shapes,
            max_in_flight_samples_per_worker=MAX_IN_FLIGHT,
        )
        batches = iter(dataset.batch(BATCH, drop_remainder=True).prefetch(2).as_numpy_iterator())
        next(batches)
        began = time.perf_counter()
        num_items = 0
        while time.perf_counter() - began < seconds:
            batch = next(batches)
            num_items += len(next(iter(batch.data.values())))
        return self._result(items, num_items, began)

    def _result(self, items, num_items, began):
        elapsed = time.perf_counter() - began
        item_bytes = sum(column.nbytes for column in items[0].values())
        return {"items_per_s": num_items / elapsed, "mb_per_s": num_items * item_bytes / elapsed / 1e6}


def _load(path):
    items = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            kind, number, column = key.split("/")
            items.setdefault(kind, {}).setdefault(int(number), {})[column] = file[key]
    return {kind: [numbered[i] for i in sorted(numbered)] for kind, numbered in items.items()}


def drive(port, path):
    driver = Driver(port, path)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        action, kind, way, seconds = line.split()
        answer = getattr(driver, action)(kind, way, float(seconds))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        drive(int(sys.argv[2]), sys.argv[3])
