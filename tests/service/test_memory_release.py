"""Test when a server releases free memory, and that the allocators return it."""

import subprocess
import sys

from penstock.service.memory_release import MemoryReleaser

MIB = 1 << 20


class FakeProcess:
    """Memory that a release reduces to the used part."""

    def __init__(self) -> None:
        self.used = self.resident = 200 * MIB
        self.releases = 0

    def measure(self) -> int:
        return self.resident

    def release(self) -> None:
        self.releases += 1
        self.resident = self.used

    def releaser(self) -> MemoryReleaser:
        return MemoryReleaser(self.measure, self.release)


def test_run_releases_memory_that_exceeds_the_floor() -> None:
    process = FakeProcess()
    releaser = process.releaser()
    releaser.run()
    process.resident = 700 * MIB
    for _ in range(4):
        releaser.run()
    assert process.resident == 200 * MIB


def test_run_with_little_excess_does_not_release() -> None:
    process = FakeProcess()
    releaser = process.releaser()
    for _ in range(5):
        releaser.run()
    releases = process.releases
    process.resident += 15 * MIB
    for _ in range(20):
        releaser.run()
    assert process.releases == releases


def test_run_after_releases_in_vain_skips_calls_but_never_stops() -> None:
    process = FakeProcess()
    releaser = process.releaser()
    releaser.run()
    process.used = process.resident = 700 * MIB  # in use
    for _ in range(40):
        releaser.run()
    assert 9 <= process.releases <= 14
    process.used = 200 * MIB  # freed, but still resident
    for _ in range(4):
        releaser.run()
    assert process.resident == 200 * MIB


_PROGRAM = """
import threading
import pyarrow as pa
from penstock.service.memory_release import anonymous_memory_bytes, limit_allocator_memory, release_free_memory

limit_allocator_memory()
start = anonymous_memory_bytes()
held = {}
def fill(n):
    held[n] = [bytearray(60_000) for _ in range(1000)], [pa.allocate_buffer(1 << 20) for _ in range(32)]
    for buffer in held[n][1]:
        memoryview(buffer)[:] = bytes(1 << 20)
threads = [threading.Thread(target=fill, args=(n,)) for n in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
full = anonymous_memory_bytes()
kept = [bytearray(60_000) for _ in range(8)]  # on top of the heap, so that freeing alone returns nothing
held.clear()
release_free_memory()
print(full - start, anonymous_memory_bytes() - start)
"""


def test_release_free_memory_returns_freed_blocks_of_all_threads() -> None:
    completed = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    full, released = map(int, completed.stdout.split())
    assert full > 600 * MIB
    assert released < full / 10
