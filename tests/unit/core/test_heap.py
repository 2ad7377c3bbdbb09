"""What keeping freed memory is for: large blocks that come and go cost no page faults."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, sys, threading
import numpy as np
from shoal.heap import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()

def work():
    for _ in range(4):
        # Above the size from which glibc always asks the system.
        block = np.ones(40 << 20, np.uint8)
        del block

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

thread = threading.Thread(target=work)
thread.start()
thread.join()
before = faults()
work()
print(faults() - before)
"""


def page_faults(mode: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


def test_large_blocks_that_come_and_go_stay_with_the_process() -> None:
    kept, by_default = page_faults("keep"), page_faults("default")
    print(f"page faults of 4 blocks of 40 MiB: {kept} kept, {by_default} by default")
    assert kept < by_default / 10
