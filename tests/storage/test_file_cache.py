"""The cache of a bucket's files: verified, bounded, shared by processes, and free of what dead ones left."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from penstock.errors import Unavailable
from penstock.storage.file_cache import FileCache
from storage.object_stores import Reference

FILE_BYTES = 1_000


def file(name: str) -> Reference:
    return Reference(f"data/t/{name}", FILE_BYTES, f"sha256:{hashlib.sha256(content(name)).hexdigest()}")


def content(path: str) -> bytes:
    return path.rpartition("/")[2].encode().ljust(FILE_BYTES, b".")


def download(path: str) -> Iterator[bytes]:
    whole = content(path)
    yield whole[:400]
    yield whole[400:]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[FileCache]:
    cache = FileCache(tmp_path, 3 * FILE_BYTES)
    yield cache
    cache.close()


def use(cache: FileCache, *names: str) -> None:
    for name in names:
        cache.pin(file(name), download)
        cache.unpin(file(name).path)


def cached(cache: FileCache) -> set[str]:
    return {path.name for path in (cache.folder / "data").rglob("*") if path.is_file()}


def work_files(cache: FileCache) -> list[Path]:
    return [path for path in (cache.folder / "work").rglob("*") if path.is_file() and path.suffix != ".lock"]


def used_bytes(cache: FileCache) -> int:
    return int((cache.folder / "usage").read_text())


def test_pin_downloads_file_once(cache: FileCache) -> None:
    use(cache, "a", "a", "a")
    assert Path(cache.locate(file("a").path)).read_bytes() == content("a")
    assert (cache.misses, cache.hits) == (1, 2)
    assert used_bytes(cache) == FILE_BYTES


def test_pin_without_download_does_nothing_for_missing_file(cache: FileCache) -> None:
    assert not cache.pin(file("a"), None)
    use(cache, "a", "b", "c", "d")  # nothing is pinned
    assert len(cached(cache)) == 3


def test_pin_evicts_least_recently_used_file(cache: FileCache) -> None:
    for name in "abc":
        use(cache, name)
        time.sleep(0.02)
    use(cache, "a")
    use(cache, "d")
    assert cached(cache) == {"a", "c", "d"}
    assert used_bytes(cache) == 3 * FILE_BYTES


def test_pin_never_evicts_pinned_file(cache: FileCache) -> None:
    for name in "abc":
        cache.pin(file(name), download)
    with pytest.raises(Unavailable, match="PENSTOCK_CACHE_BYTES") as caught:
        cache.pin(file("d"), download)
    assert caught.value.reason == "cache_full"
    assert cached(cache) == {"a", "b", "c"}
    assert work_files(cache) == []
    cache.unpin(file("b").path)
    cache.pin(file("d"), download)
    assert cached(cache) == {"a", "c", "d"}


def test_pin_twice_needs_two_unpins(cache: FileCache) -> None:
    cache.pin(file("a"), download)
    use(cache, "a", "b", "c", "d")
    assert "a" in cached(cache)


def test_pin_of_file_larger_than_cache_names_setting(cache: FileCache) -> None:
    large = Reference("data/t/large", 3_001, "")
    with pytest.raises(Unavailable, match=r"3,001 bytes .* PENSTOCK_CACHE_BYTES"):
        cache.pin(large, download)


@pytest.mark.parametrize(
    "damage",
    [lambda whole: whole[:-1], lambda whole: whole + b".", lambda whole: b"#" + whole[1:], lambda _: b""],
    ids=["short", "long", "changed", "empty"],
)
def test_pin_refuses_wrong_bytes(cache: FileCache, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Unavailable) as caught:
        cache.pin(file("a"), lambda path: iter([damage(content(path))]))
    assert caught.value.reason == "file_damaged"
    assert cached(cache) == set()
    assert work_files(cache) == []
    assert used_bytes(cache) == 0
    use(cache, "a")  # the next download is right
    assert cached(cache) == {"a"}


def test_pin_after_failed_download_leaves_no_partial_file(cache: FileCache) -> None:
    def cut(path: str) -> Iterator[bytes]:
        yield content(path)[:400]
        raise Unavailable("store_unavailable")

    with pytest.raises(Unavailable):
        cache.pin(file("a"), cut)
    assert work_files(cache) == []
    assert used_bytes(cache) == 0


def test_pin_in_several_threads_downloads_once(cache: FileCache) -> None:
    started, downloads = threading.Event(), []

    def slow(path: str) -> Iterator[bytes]:
        downloads.append(path)
        started.wait(10)
        yield from download(path)

    threads = [threading.Thread(target=cache.pin, args=(file("a"), slow)) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    started.set()
    for thread in threads:
        thread.join()
    assert downloads == [file("a").path]


def test_pin_after_truncation_downloads_again(cache: FileCache) -> None:
    use(cache, "a")
    os.truncate(cache.locate(file("a").path), 10)
    use(cache, "a")
    assert Path(cache.locate(file("a").path)).read_bytes() == content("a")


def test_pin_after_restart_of_machine_verifies_content(cache: FileCache) -> None:
    use(cache, "a", "b")
    Path(cache.locate(file("a").path)).write_bytes(b"\0" * FILE_BYTES)  # a lost write of the same length
    for name in "ab":
        os.utime(cache.locate(file(name).path), (0, 0))
    use(cache, "a", "b")
    assert Path(cache.locate(file("a").path)).read_bytes() == content("a")
    assert cache.misses == 3


def test_admit_moves_draft_into_cache(cache: FileCache) -> None:
    draft = cache.draft_location("draft")
    Path(draft).write_bytes(content("a"))
    cache.admit(draft, file("a").path)
    use(cache, "a")
    assert (cache.misses, cached(cache), work_files(cache)) == (0, {"a"}, [])


def test_admit_without_room_removes_draft(cache: FileCache) -> None:
    for name in "abc":
        cache.pin(file(name), download)
    draft = cache.draft_location("draft")
    Path(draft).write_bytes(content("d"))
    cache.admit(draft, file("d").path)
    assert (cached(cache), work_files(cache)) == ({"a", "b", "c"}, [])


def test_remove_deletes_copies_that_are_not_pinned(cache: FileCache) -> None:
    use(cache, "a")
    cache.pin(file("b"), download)
    cache.remove([file(name).path for name in "abc"])
    assert cached(cache) == {"b"}
    assert used_bytes(cache) == FILE_BYTES


def test_eviction_corrects_usage_counter(cache: FileCache) -> None:
    use(cache, "a")
    (cache.folder / "usage").write_text(str(1 << 40))
    use(cache, "b")
    assert used_bytes(cache) == 2 * FILE_BYTES
    assert cached(cache) == {"a", "b"}


def test_locate_does_no_io(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache")
    assert cache.locate("data/t/a") == f"{tmp_path}/cache/data/t/a"
    assert not cache.folder.exists()


# Other processes

_PIN_AND_WAIT = dedent("""
    import sys
    from pathlib import Path
    from storage.test_file_cache import FILE_BYTES, download, file
    from penstock.storage.file_cache import FileCache
    cache = FileCache(Path(sys.argv[1]), 3 * FILE_BYTES)
    cache.pin(file("a"), download)
    Path(cache.draft_location("draft")).write_bytes(b"unfinished")
    Path(cache.draft_location("x.part")).write_bytes(b"unfinished")
    print("ready", flush=True)
    sys.stdin.read()
""")


@pytest.fixture
def other_process(cache: FileCache) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PIN_AND_WAIT, str(cache.folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_pin_of_other_process_prevents_eviction(cache: FileCache, other_process: "subprocess.Popen[str]") -> None:
    time.sleep(0.02)
    use(cache, "b", "c", "d")
    assert "a" in cached(cache)
    assert cache.misses == 3
    use(cache, "a")
    assert cache.misses == 3  # the copy of the other process is used


def test_killed_process_leaves_no_pins_and_no_files(cache: FileCache, other_process: "subprocess.Popen[str]") -> None:
    use(cache, "b")
    assert len(work_files(cache)) == 2  # the files of a live process stay
    other_process.kill()
    other_process.wait()
    use(cache, "c", "d")
    assert cached(cache) == {"b", "c", "d"}
    assert work_files(cache) == []


def test_first_use_removes_files_of_dead_processes(cache: FileCache, other_process: "subprocess.Popen[str]") -> None:
    other_process.kill()
    other_process.wait()
    use(cache, "b")
    assert work_files(cache) == []
    assert cached(cache) == {"a", "b"}


def test_close_removes_temporary_files(tmp_path: Path) -> None:
    cache = FileCache(tmp_path)
    use(cache, "a")
    Path(cache.draft_location("draft")).write_bytes(b"")
    cache.close()
    assert list((tmp_path / "work").iterdir()) == []
    use(cache, "a")  # it can be opened again
    assert cache.hits == 1
    cache.close()


def test_unpin_after_close_is_ignored(cache: FileCache) -> None:
    cache.pin(file("a"), download)
    cache.close()
    cache.unpin(file("a").path)
    assert list((cache.folder / "work").iterdir()) == []


def test_caches_of_several_processes_stay_within_the_limit(cache: FileCache) -> None:
    script = dedent("""
        import random, sys
        from pathlib import Path
        from storage.test_file_cache import FILE_BYTES, content, download, file
        from penstock.storage.file_cache import FileCache
        cache, choices = FileCache(Path(sys.argv[1]), 3 * FILE_BYTES), random.Random(sys.argv[2])
        for _ in range(200):
            name = choices.choice("abcdefgh")
            cache.pin(file(name), download)
            assert Path(cache.locate(file(name).path)).read_bytes() == content(name)
            cache.unpin(file(name).path)
        cache.close()
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(cache.folder)]
    processes = [subprocess.Popen([*command, str(seed)], env=environment) for seed in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert used_bytes(cache) == FILE_BYTES * len(cached(cache)) <= 3 * FILE_BYTES
