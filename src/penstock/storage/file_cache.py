"""Keep verified copies of a bucket's files on this machine, bounded in size, for all processes of the machine.

    data/…          complete files, under the paths that they have in the bucket
    work/<id>/      partial downloads, drafts and scratch folders of one process
    work/<id>.lock  locked while the process lives
    pins            a locked byte for each file in use, and for each download
    usage           bytes of the complete files and of the downloads in progress

A file never changes, so that a copy never becomes stale. A copy is complete from the moment it has its name. It is
removed if the cache is full, the least recently used one first, unless a process has pinned it.
"""

import fcntl
import hashlib
import os
import shutil
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from penstock.core.workspace_layout import DATA_FOLDER
from penstock.errors import Unavailable
from penstock.storage.file_store import FileReference, check_path, format_checksum, translate_errors
from penstock.storage.local_store import checksum_file

DEFAULT_CACHE_BYTES = 10 << 30
_TARGET_PERCENT = 95  # of the size, after an eviction: the next few files need no other one
_PART_SUFFIX = ".part"
_DOWNLOAD_BYTES = 1 << 62  # distance between the bytes that stand for a file in use and for its download

Download = Callable[[str], Iterable[bytes]]  # yields the content of a path


class FileCache:
    """A cache folder. It is thread-safe, and creates the folder on first use."""

    def __init__(self, folder: Path, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.folder, self.max_bytes = folder.expanduser().absolute(), max_bytes
        self._usage = _UsageCounter(self.folder / "usage")
        self._lock = threading.Lock()
        self._process: _ProcessFolder | None = None
        self._pins: _PinTable | None = None
        self._downloads: dict[str, Future[None]] = {}  # by path
        self.hits = self.misses = 0

    def locate(self, path: str) -> str:
        """Return the location of the copy of a file. Does no I/O."""
        check_path(path)
        return f"{self.folder}/{path}"

    def pin(self, file: FileReference, download: Download | None) -> bool:
        """Provide a file at its location, and keep it there until `unpin`.

        Args:
            file: the file, with the size and checksum of its commit
            download: reads the file from the bucket; None: do nothing if the file is not in the cache

        Returns:
            True if the file is pinned

        Raises:
            Unavailable: the cache is too small (cache_full), or the bytes are not those of the commit (file_damaged)
        """
        pins = self._opened().pins
        pins.add(file.path)
        try:
            if self._is_cached(file):
                self.hits += 1
                return True
            if download is None:
                pins.remove(file.path)
                return False
            self._download_once(file, download)
        except BaseException:
            pins.remove(file.path)
            raise
        return True

    def unpin(self, path: str) -> None:
        """Allow the removal of a pinned file. After `close` nothing is pinned any more."""
        with self._lock:
            pins = self._pins
        if pins:
            pins.remove(path)

    def draft_location(self, name: str) -> str:
        """Return the location of a new file or folder of this process, on the same file system as the cache."""
        return f"{self._opened().folder}/{name}"

    def admit(self, draft: str, path: str) -> None:
        """Move a complete file into the cache. If the cache has no room for it, the file is removed."""
        with translate_errors(path):
            size = os.path.getsize(draft)
            try:
                self._reserve(size, None)
            except Unavailable:
                os.unlink(draft)
                return
            self._move_in(draft, path)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove copies that are not pinned. The other ones stay until they are the least recently used."""
        if not self.folder.exists():
            return
        removed = 0
        with self._evictor() as evictor:
            for path in paths:
                removed += evictor.remove(path)
        if removed:
            self._release(removed)

    def close(self) -> None:
        """Remove the temporary files of this process."""
        with self._lock:
            process, self._process = self._process, None
            pins, self._pins = self._pins, None
        if pins:
            pins.close()
        if process:
            process.close()

    def _is_cached(self, file: FileReference) -> bool:
        """Check that a copy exists, and mark it as used. After a restart of the machine its content is verified again."""
        location = self.locate(file.path)
        try:
            status = os.stat(location)
            if status.st_size != file.bytes:
                return False
            if status.st_mtime < _boot_time() and checksum_file(location) != file.checksum:
                return False
            os.utime(location)
        except FileNotFoundError:
            return False
        return True

    def _download_once(self, file: FileReference, download: Download) -> None:
        """Download a file, or wait for the thread or process that already downloads it."""
        with self._lock:
            running = self._downloads.get(file.path)
            if running is None:
                own = self._downloads[file.path] = Future[None]()
        if running is not None:
            running.result()
            return
        try:
            with self._opened().pins.download_lock(file.path):
                if not self._is_cached(file):  # another thread or process may have finished in the meantime
                    self.misses += 1
                    self._download(file, download)
        except BaseException as error:
            own.set_exception(error)
            raise
        else:
            own.set_result(None)
        finally:
            with self._lock:
                del self._downloads[file.path]

    def _download(self, file: FileReference, download: Download) -> None:
        part = self.draft_location(f"{uuid4().hex}{_PART_SUFFIX}")
        with translate_errors(file.path):
            self._reserve(file.bytes, part)
            try:
                digest, size = hashlib.sha256(), 0
                with open(part, "r+b", buffering=0) as output:
                    for block in download(file.path):
                        digest.update(block)
                        size += len(block)
                        if size > file.bytes:
                            break
                        _write_all(output.fileno(), block)
                if size != file.bytes or format_checksum(digest) != file.checksum:
                    raise Unavailable("file_damaged.object", path=file.path)
                self._move_in(part, file.path)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(part)
                self._release(file.bytes)
                raise

    def _move_in(self, location: str, path: str) -> None:
        target = self.locate(path)
        try:
            os.rename(location, target)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(location, target)

    def _reserve(self, size: int, part: str | None) -> None:
        """Make room for a file, and create the sparse file for its download, which counts as used."""
        if size > self.max_bytes:
            raise Unavailable("cache_full.file", {"size": size, "max_bytes": self.max_bytes})
        self._opened()
        with self._usage.locked() as used:
            if used.bytes + size > self.max_bytes:
                used.bytes = self._evict(min(self.max_bytes - size, self.max_bytes * _TARGET_PERCENT // 100))
                if used.bytes + size > self.max_bytes:
                    raise Unavailable("cache_full.pinned", {"max_bytes": self.max_bytes})
            if part:
                with open(part, "xb") as file:
                    file.truncate(size)
            used.bytes += size

    def _release(self, size: int) -> None:
        with self._usage.locked() as used:
            used.bytes = max(used.bytes - size, 0)

    def _evict(self, max_bytes: int) -> int:
        """Remove the least recently used files until at most `max_bytes` are used, and return the bytes in use."""
        _remove_dead_processes(self.folder / "work")
        parts = dict(_part_sizes(self.folder / "work"))
        entries = sorted(_cached_files(f"{self.folder}/{DATA_FOLDER}"))
        # A download that was completed in between is listed as both.
        used = sum(parts.values()) + sum(size for _, size, inode, _ in entries if inode not in parts)
        with self._evictor() as evictor:
            for _, _, _, location in entries:
                if used <= max_bytes:
                    break
                used -= evictor.remove(os.path.relpath(location, self.folder))
        return used

    @contextmanager
    def _evictor(self) -> Iterator["_Evictor"]:
        descriptor = os.open(self.folder / "pins", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield _Evictor(descriptor, self.folder)
        finally:
            os.close(descriptor)

    def _opened(self) -> "_OpenCache":
        with self._lock:
            if self._process is None or self._pins is None:
                with translate_errors("cache"):
                    (self.folder / DATA_FOLDER).mkdir(parents=True, exist_ok=True, mode=0o700)
                    with self._usage.locked():  # other processes look for dead ones under the same lock
                        _remove_dead_processes(self.folder / "work")
                        self._process = _ProcessFolder(self.folder / "work")
                    self._pins = _PinTable(self.folder / "pins")
            return _OpenCache(self._process.folder, self._pins)


class _OpenCache:
    def __init__(self, folder: Path, pins: "_PinTable") -> None:
        self.folder, self.pins = folder, pins


class _ProcessFolder:
    """The folder of one process. Its lock tells other processes that the process lives."""

    def __init__(self, parent: Path) -> None:
        self.folder = parent / uuid4().hex
        self._lock_file = self.folder.with_suffix(".lock")
        parent.mkdir(exist_ok=True, mode=0o700)
        self._descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self.folder.mkdir()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock_file.unlink(missing_ok=True)
        os.close(self._descriptor)


def _remove_dead_processes(parent: Path) -> None:
    """Remove the folders of processes that have ended. The caller holds the lock of the usage counter."""
    for lock_file in parent.glob("*.lock"):
        with suppress(OSError):
            descriptor = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_file.with_suffix(""), ignore_errors=True)
                lock_file.unlink()
            finally:
                os.close(descriptor)


class _PinTable:
    """The files that this process uses, as shared locks on bytes of one file: one descriptor for any number of them.

    The locks belong to the open file (`F_OFD_SETLK`), so that they are of the process as a whole, and end with it.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._counts = Counter[int]()  # users by byte

    def add(self, path: str) -> None:
        byte = _pin_byte(path)
        with self._lock:
            if not self._counts[byte]:
                _lock_byte(self._descriptor, fcntl.F_RDLCK, byte, wait=True)
            self._counts[byte] += 1

    def remove(self, path: str) -> None:
        byte = _pin_byte(path)
        with self._lock:
            if self._counts[byte] > 1:
                self._counts[byte] -= 1
            elif self._counts.pop(byte, 0):
                _lock_byte(self._descriptor, fcntl.F_UNLCK, byte)

    @contextmanager
    def download_lock(self, path: str) -> Iterator[None]:
        """Wait until no other process downloads the file. One thread of a process at a time calls this for a path."""
        byte = _pin_byte(path) + _DOWNLOAD_BYTES
        _lock_byte(self._descriptor, fcntl.F_WRLCK, byte, wait=True)
        try:
            yield
        finally:
            _lock_byte(self._descriptor, fcntl.F_UNLCK, byte)

    def close(self) -> None:
        with self._lock:
            self._counts.clear()
            os.close(self._descriptor)


class _Evictor:
    """Removes files that no process has pinned."""

    def __init__(self, descriptor: int, folder: Path) -> None:
        self._descriptor, self._folder = descriptor, folder

    def remove(self, path: str) -> int:
        """Remove a file and return its size; 0 if it is pinned or missing."""
        byte, location = _pin_byte(path), f"{self._folder}/{path}"
        try:
            _lock_byte(self._descriptor, fcntl.F_WRLCK, byte)
        except OSError:
            return 0
        try:
            size = os.stat(location).st_size
            os.unlink(location)
        except FileNotFoundError:
            return 0
        finally:
            _lock_byte(self._descriptor, fcntl.F_UNLCK, byte)
        return size


class _UsageCounter:
    """A number of bytes in a file, shared by processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.bytes = 0

    @contextmanager
    def locked(self) -> Iterator["_Used"]:
        """Lock the counter, and write its value at the end of the block if it has changed."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            text = os.pread(descriptor, 32, 0).strip()
            used = _Used(int(text) if text.isdigit() else 0)
            before = used.bytes
            try:
                yield used
            finally:
                if used.bytes != before or not text:
                    os.pwrite(descriptor, b"%-31d\n" % used.bytes, 0)
        finally:
            os.close(descriptor)


class _Used:
    def __init__(self, used: int) -> None:
        self.bytes = used


def _cached_files(folder: str) -> Iterator[tuple[float, int, int, str]]:
    """Yield time of last use, size, inode and location of each file below a folder."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _cached_files(entry.path)
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                yield status.st_mtime, status.st_size, status.st_ino, entry.path


def _part_sizes(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield inode and size of each download in progress."""
    for part in folder.glob(f"*/*{_PART_SUFFIX}"):
        with suppress(FileNotFoundError):
            status = part.stat()
            yield status.st_ino, status.st_size


def _pin_byte(path: str) -> int:
    """Return the position of the byte that stands for a path. Paths with the same byte are pinned together."""
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "big") >> 2


def _lock_byte(descriptor: int, lock_type: int, byte: int, *, wait: bool = False) -> None:
    lock = struct.pack("hhqqi4x", lock_type, os.SEEK_SET, byte, 1, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, lock)


def _write_all(descriptor: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]


def _boot_time() -> float:
    """Return the time at which the machine has started: files that were written before may lack content."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
