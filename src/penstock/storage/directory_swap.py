"""Change several files of a plain directory atomically: stage, write a journal, rename.

Staged files and the journal are in a work folder beside the directory (`.NAME.penstock`), where readers of the
directory do not look. If the directory is a mount point or its parent is not writable, the work folder is inside it,
under a hidden name. The journal is the point of no return: without a journal, staged files are removed; with one, the
next change finishes it.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

from penstock import failpoints
from penstock.errors import Conflict, Invalid, Unavailable

_JOURNAL = "journal.json"
_LOCK_FILE = "lock"
_JOURNAL_FORMAT = 1


class DirectorySwap:
    """A change of a locked directory. New files are staged, then renamed by `commit`."""

    def __init__(self, target: Path, work_folder: Path) -> None:
        self._target, self._work_folder = target, work_folder
        self._stage = work_folder / f"stage-{uuid4().hex}"
        self._stage.mkdir()

    @property
    def scratch(self) -> str:
        """Return a folder for temporary files."""
        return str(self._stage)

    def path(self) -> str:
        """Return a path for a new staged file."""
        return str(self._stage / f"{uuid4().hex}.staged")

    def folder(self) -> str:
        """Return a path for a new folder, which does not exist yet."""
        return str(self._stage / f"{uuid4().hex}.folder")

    def commit(
        self, moves: Sequence[tuple[str, str]], removes: Sequence[str], *, remove_directory: bool = False
    ) -> None:
        """Rename staged files into the directory and remove other files, completely or not at all.

        Args:
            moves: staged path and final name, relative to the directory
            removes: names of files to remove
            remove_directory: also remove the directory, if it is empty then
        """
        with _translate_errors(self._target):
            # Permanent errors must occur before the journal is written, because a journal has to be executed.
            for folder in {
                _resolve_below(self._target, name).parent for name in (*removes, *(final for _, final in moves))
            }:
                folder.mkdir(parents=True, exist_ok=True)
                if not os.access(folder, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
            for staged, _ in moves:
                _sync(Path(staged))
            for folder in {Path(staged).parent for staged, _ in moves}:
                _sync(folder)
            _sync(self._work_folder)
            _sync(self._work_folder.parent)
        failpoints.hit("swap.staged")
        journal = {
            "format": _JOURNAL_FORMAT,
            "target": _directory_identity(self._target),
            "moves": [[os.path.relpath(staged, self._work_folder), final] for staged, final in moves],
            "removes": list(removes),
            "remove_directory": remove_directory,
        }
        temporary = self._work_folder / f"{_JOURNAL}.draft"
        with _translate_errors(self._target):
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(journal, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._work_folder / _JOURNAL)
            _sync(self._work_folder)
        failpoints.hit("swap.journaled")
        _apply_journal(self._target, self._work_folder)


@contextlib.contextmanager
def locked_swap(target: Path, *, wait: float = 60.0) -> Iterator[DirectorySwap]:
    """Lock the directory, and first finish or undo an interrupted change."""
    with _lock_folder(target, wait) as work_folder:
        _recover_folder(target, work_folder)
        try:
            failpoints.hit("swap.locked")
            yield DirectorySwap(target, work_folder)
        finally:
            _remove_staged(work_folder)


@contextlib.contextmanager
def scratch_swap(target: Path) -> Iterator[DirectorySwap]:
    """Provide a scratch folder without a lock, for a merge that only reports."""
    if any((work_folder / _JOURNAL).exists() for work_folder in _work_folders(target)):
        raise Unavailable(
            "merge_interrupted.pending",
            {"target": target},
        )
    near = target.parent if target.is_dir() and os.access(target.parent, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.penstock-", dir=near) as work_folder:
        yield DirectorySwap(target, Path(work_folder))


def recover(target: Path, *, wait: float = 60.0) -> str | None:
    """Finish or undo an interrupted change. Returns "finished", "undone", or None if there was none."""
    if not any(work_folder.is_dir() for work_folder in _work_folders(target)):
        return None
    with _lock_folder(target, wait) as work_folder:
        return _recover_folder(target, work_folder)


def _work_folders(target: Path) -> tuple[Path, Path]:
    return target.parent / f".{target.name}.penstock", target / ".penstock"


def _other_folder(target: Path, work_folder: Path) -> Path:
    beside, inside = _work_folders(target)
    return inside if work_folder == beside else beside


def _choose_work_folder(target: Path) -> Path:
    beside, inside = _work_folders(target)
    if (inside / _JOURNAL).exists():
        return inside
    if target.is_dir() and (
        target.stat().st_dev != target.parent.stat().st_dev or not os.access(target.parent, os.W_OK | os.X_OK)
    ):
        return inside
    return beside


@contextlib.contextmanager
def _lock_folder(target: Path, wait: float) -> Iterator[Path]:
    work_folder = _choose_work_folder(target)
    deadline = time.monotonic() + wait
    missing_parents = [parent for parent in work_folder.parents if not parent.exists()]  # innermost first
    try:
        while (lock := _try_lock(work_folder, _other_folder(target, work_folder))) is None:
            if time.monotonic() > deadline:
                raise Unavailable(
                    "directory_busy",
                    {"target": target, "wait": wait},
                )
            time.sleep(0.05)
    except OSError as cause:
        raise Unavailable("cannot_write_directory.lock", {"target": target, "error": cause.strerror or cause}) from None
    try:
        yield work_folder
    finally:
        if not (work_folder / _JOURNAL).exists():
            (work_folder / _LOCK_FILE).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a folder that is in use is not empty
                for folder in (work_folder, *missing_parents):
                    folder.rmdir()
        os.close(lock)


def _try_lock(work_folder: Path, other: Path) -> int | None:
    """Return the lock as an open file, or None. The operating system releases it when the process ends.

    A process with other permissions may use the other work folder: each process checks the other lock after it has
    taken its own, so at least one of two detects the other.
    """
    work_folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        work_folder.mkdir(mode=0o700, exist_ok=True)
        _check_owner(work_folder)
        lock = os.open(work_folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:  # the previous owner has just removed the folder, or its parents
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        removed = (
            os.stat(work_folder / _LOCK_FILE).st_ino != os.fstat(lock).st_ino
        )  # the file was removed before it was locked
        if not removed and not _is_in_use(other):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _is_in_use(work_folder: Path) -> bool:
    if (work_folder / _JOURNAL).exists():
        return True
    try:
        lock = os.open(work_folder / _LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _check_owner(work_folder: Path) -> None:
    """Check the owner of the work folder: its journal is executed, so its owner must have the right to change the
    directory.
    """
    status = work_folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.geteuid(), work_folder.parent.stat().st_uid):
        raise Invalid("foreign_journal", {"work_folder": work_folder})


def _directory_identity(target: Path) -> list[int] | None:
    """Return device and inode, which distinguish the directory from another one with the same name."""
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    return [status.st_dev, status.st_ino]


def _recover_folder(target: Path, work_folder: Path) -> str | None:
    if (work_folder / _JOURNAL).exists():
        journal = _read_journal(work_folder)
        if not journal["remove_directory"] and journal["target"] not in (None, _directory_identity(target)):
            raise Conflict(
                "directory_replaced",
                {"target": target, "work_folder": work_folder},
            )
        _apply_journal(target, work_folder)
        _remove_staged(work_folder)
        return "finished"
    return "undone" if _remove_staged(work_folder) else None


def _apply_journal(target: Path, work_folder: Path) -> None:
    """Execute the journal. Every step can be repeated."""
    journal = _read_journal(work_folder)
    with _translate_errors(target, journal=work_folder / _JOURNAL):
        _apply_changes(target, work_folder, journal)
    failpoints.hit("swap.done")
    (work_folder / _JOURNAL).unlink()
    _sync(work_folder)


def _apply_changes(target: Path, work_folder: Path, journal: dict[str, Any]) -> None:
    folders = set()
    for staged, final in journal["moves"]:
        source, target_file = _resolve_below(work_folder, staged), _resolve_below(target, final)
        if source.exists():
            target_file.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target_file)
        folders.add(target_file.parent)
        failpoints.hit("swap.moved")
    for folder in folders:
        for folder_or_parent in (folder, *folder.parents):
            _sync(folder_or_parent)
            if folder_or_parent == target.parent:
                break
    emptied = set()
    for name in journal["removes"]:
        target_file = _resolve_below(target, name)
        target_file.unlink(missing_ok=True)
        emptied.add(target_file.parent)
        failpoints.hit("swap.removed")
    for folder in emptied:
        _remove_empty(folder, target, also_target=journal["remove_directory"])


def _read_journal(work_folder: Path) -> dict[str, Any]:
    path = work_folder / _JOURNAL
    try:
        journal: dict[str, Any] = {"target": None, **json.loads(path.read_text("utf-8"))}
        if journal["format"] != _JOURNAL_FORMAT:
            raise ValueError(f"format {journal['format']}")
    except (ValueError, KeyError, TypeError) as cause:
        raise Invalid(
            "broken_journal.unreadable",
            {"path": path, "cause": cause},
        ) from None
    return journal


def _remove_empty(folder: Path, target: Path, *, also_target: bool) -> None:
    """Remove empty folders, innermost first."""
    while folder != target:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass  # removed before the interruption
        except OSError:
            _sync(folder)
            return
        folder = folder.parent
    if also_target:
        with contextlib.suppress(OSError):  # it has other files, or was removed
            target.rmdir()
        _sync(target.parent)
    if target.exists():
        _sync(target)


def _remove_staged(work_folder: Path) -> bool:
    """Remove staged files. Returns whether there were any."""
    if (work_folder / _JOURNAL).exists():  # the journal needs the staged files
        return False
    stages = [*work_folder.glob("stage-*"), *work_folder.glob(f"{_JOURNAL}.draft")]
    for stage in stages:
        if stage.is_dir():
            shutil.rmtree(stage, ignore_errors=True)
        else:
            stage.unlink(missing_ok=True)
    return bool(stages)


def _resolve_below(root: Path, name: str) -> Path:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise Invalid("broken_journal.outside", {"root": root})
    return root / name


@contextlib.contextmanager
def _translate_errors(target: Path, journal: Path | None = None) -> Iterator[None]:
    """Raise errors of the file system as Unavailable, with their consequence for the merge."""
    try:
        yield
    except OSError as cause:
        message = f"{cause.strerror or cause}{f' ({cause.filename})' if cause.filename else ''}"
        if journal is None:
            raise Unavailable("cannot_write_directory.unchanged", {"target": target, "error": message}) from cause
        raise Unavailable(
            "merge_interrupted.journaled",
            {"journal": journal, "error": message, "target": target},
        ) from cause


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
