"""Change a plain directory all at once: stage, journal, rename. What was interrupted is finished or undone by the next.

Everything that is not yet data lives in a folder of its own beside the directory (`.NAME.penstock`), where no reader of
the directory looks; inside it, under a hidden name, where the directory is a mount point or its parent is closed to us.
The journal is the point of no return: without one, staged files are removed; with one, it is carried out.
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

from penstock import failpoints as faults
from penstock.errors import Conflict, Invalid, Unavailable

_JOURNAL = "journal.json"
_LOCK = "lock"
_FORMAT = 1


class Swap:
    """A directory held for one change. New files are staged, then put in place by `commit`."""

    def __init__(self, target: Path, place: Path) -> None:
        self._target, self._place = target, place
        self._stage = place / f"stage-{uuid4().hex}"
        self._stage.mkdir()

    @property
    def scratch(self) -> str:
        """A folder for what is needed on the way."""
        return str(self._stage)

    def path(self) -> str:
        """A path for a new file."""
        return str(self._stage / f"{uuid4().hex}.staged")

    def folder(self) -> str:
        """A path for a folder that is not there yet."""
        return str(self._stage / f"{uuid4().hex}.folder")

    def commit(
        self, moves: Sequence[tuple[str, str]], removes: Sequence[str], *, remove_directory: bool = False
    ) -> None:
        """Give staged files their names below the directory, and remove others: all of it, whatever happens.

        With `remove_directory` the directory goes too, if nothing is left in it.
        """
        with _told(self._target):
            # Whatever could go wrong for good must do so now: once there is a journal, it has to be carried out.
            for folder in {_below(self._target, name).parent for name in (*removes, *(final for _, final in moves))}:
                folder.mkdir(parents=True, exist_ok=True)
                if not os.access(folder, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
            for staged, _ in moves:
                _sync(Path(staged))
            for folder in {Path(staged).parent for staged, _ in moves}:
                _sync(folder)
            _sync(self._place)
            _sync(self._place.parent)
        faults.at("swap.staged")
        journal = {
            "format": _FORMAT,
            "target": _identity(self._target),
            "moves": [[os.path.relpath(staged, self._place), final] for staged, final in moves],
            "removes": list(removes),
            "remove_directory": remove_directory,
        }
        draft = self._place / f"{_JOURNAL}.draft"
        with _told(self._target):
            with draft.open("w", encoding="utf-8") as file:
                json.dump(journal, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._place / _JOURNAL)
            _sync(self._place)
        faults.at("swap.journaled")
        _carry_out(self._target, self._place)


@contextlib.contextmanager
def held(target: Path, *, wait: float = 60.0) -> Iterator[Swap]:
    """Hold the directory, alone; what an earlier change left is finished or undone first."""
    with _locked(target, wait) as place:
        _recover(target, place)
        try:
            faults.at("swap.locked")
            yield Swap(target, place)
        finally:
            _clear(place)


@contextlib.contextmanager
def aside(target: Path) -> Iterator[Swap]:
    """A place for passing files, without a hold: for those who only look."""
    if any((place / _JOURNAL).exists() for place in _places(target)):
        raise Unavailable(
            "merge_interrupted",
            f"a merge into {target} was interrupted; the next merge, or `penstock merge --recover {target}`, finishes it",
        )
    near = target.parent if target.is_dir() and os.access(target.parent, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.penstock-", dir=near) as place:
        yield Swap(target, Path(place))


def recover(target: Path, *, wait: float = 60.0) -> str | None:
    """Finish or undo what was interrupted: "finished", "undone", or None where there was nothing."""
    if not any(place.is_dir() for place in _places(target)):
        return None
    with _locked(target, wait) as place:
        return _recover(target, place)


def _places(target: Path) -> tuple[Path, Path]:
    return target.parent / f".{target.name}.penstock", target / ".penstock"


def _other(target: Path, place: Path) -> Path:
    beside, inside = _places(target)
    return inside if place == beside else beside


def _place(target: Path) -> Path:
    beside, inside = _places(target)
    if (inside / _JOURNAL).exists():
        return inside
    if target.is_dir() and (
        target.stat().st_dev != target.parent.stat().st_dev or not os.access(target.parent, os.W_OK | os.X_OK)
    ):
        return inside
    return beside


@contextlib.contextmanager
def _locked(target: Path, wait: float) -> Iterator[Path]:
    place = _place(target)
    deadline = time.monotonic() + wait
    try:
        while (lock := _try_lock(place, _other(target, place))) is None:
            if time.monotonic() > deadline:
                raise Unavailable(
                    "directory_busy",
                    f"another merge into {target} has been under way for {wait:.0f} s; try again later",
                )
            time.sleep(0.05)
    except OSError as cause:
        raise Unavailable("cannot_write_directory", f"{target} cannot be changed: {cause.strerror or cause}") from None
    try:
        yield place
    finally:
        if not (place / _JOURNAL).exists():
            (place / _LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                place.rmdir()
        os.close(lock)


def _try_lock(place: Path, other: Path) -> int | None:
    """The lock as an open file, or None. It is released with the process, however that ends.

    Somebody with other rights may work in the `other` place: whoever has one lock asks for the other, so one of two
    always sees the other.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    place.mkdir(mode=0o700, exist_ok=True)
    _check_owner(place)
    try:
        lock = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:  # the one before us has just cleared the place away
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        gone = os.stat(place / _LOCK).st_ino != os.fstat(lock).st_ino  # it was removed while we took it
        if not gone and not _is_used(other):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _is_used(place: Path) -> bool:
    if (place / _JOURNAL).exists():
        return True
    try:
        lock = os.open(place / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _check_owner(place: Path) -> None:
    """A journal is carried out as it stands, so it must be from somebody who may change the directory."""
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), place.parent.stat().st_uid):
        raise Invalid("foreign_journal", f"{place} is somebody else's; have them finish their merge, or remove it")


def _identity(target: Path) -> list[int] | None:
    """What tells a directory from another that has taken its name."""
    try:
        found = target.stat()
    except FileNotFoundError:
        return None
    return [found.st_dev, found.st_ino]


def _recover(target: Path, place: Path) -> str | None:
    if (place / _JOURNAL).exists():
        journal = _journal(place)
        if not journal["remove_directory"] and journal["target"] not in (None, _identity(target)):
            raise Conflict(
                "directory_replaced",
                f"a merge into {target} was interrupted, and another directory has taken its place since; "
                f"if that merge is not wanted any more, remove {place}",
            )
        _carry_out(target, place)
        _clear(place)
        return "finished"
    return "undone" if _clear(place) else None


def _carry_out(target: Path, place: Path) -> None:
    """Do what the journal says. All of it may have been done before."""
    journal = _journal(place)
    with _told(target, journal=place / _JOURNAL):
        _apply(target, place, journal)
    faults.at("swap.done")
    (place / _JOURNAL).unlink()
    _sync(place)


def _apply(target: Path, place: Path, journal: dict[str, Any]) -> None:
    folders = set()
    for staged, final in journal["moves"]:
        source, goal = _below(place, staged), _below(target, final)
        if source.exists():
            goal.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, goal)
        folders.add(goal.parent)
        faults.at("swap.moved")
    for folder in folders:
        for each in (folder, *folder.parents):
            _sync(each)
            if each == target.parent:
                break
    emptied = set()
    for name in journal["removes"]:
        goal = _below(target, name)
        goal.unlink(missing_ok=True)
        emptied.add(goal.parent)
        faults.at("swap.removed")
    for folder in emptied:
        _remove_empty(folder, target, also_target=journal["remove_directory"])


def _journal(place: Path) -> dict[str, Any]:
    path = place / _JOURNAL
    try:
        journal: dict[str, Any] = {"target": None, **json.loads(path.read_text("utf-8"))}
        if journal["format"] != _FORMAT:
            raise ValueError(f"format {journal['format']}")
    except (ValueError, KeyError, TypeError) as cause:
        raise Invalid(
            "broken_journal",
            f"{path} cannot be read ({cause}); a newer Penstock may have written it: recover with that",
        ) from None
    return journal


def _remove_empty(folder: Path, target: Path, *, also_target: bool) -> None:
    """Remove folders in which nothing is left, from the inside out."""
    while folder != target:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass  # gone before we were interrupted
        except OSError:
            _sync(folder)
            return
        folder = folder.parent
    if also_target:
        with contextlib.suppress(OSError):  # somebody else's files are in it, or it is gone
            target.rmdir()
        _sync(target.parent)
    if target.exists():
        _sync(target)


def _clear(place: Path) -> bool:
    """Remove what is staged; was there any?"""
    if (place / _JOURNAL).exists():  # a change that failed half-way: its files are needed to finish it
        return False
    stages = [*place.glob("stage-*"), *place.glob(f"{_JOURNAL}.draft")]
    for stage in stages:
        if stage.is_dir():
            shutil.rmtree(stage, ignore_errors=True)
        else:
            stage.unlink(missing_ok=True)
    return bool(stages)


def _below(root: Path, name: str) -> Path:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise Invalid("broken_journal", f"the journal of {root} names a file outside of it")
    return root / name


@contextlib.contextmanager
def _told(target: Path, journal: Path | None = None) -> Iterator[None]:
    """What the file system says, with what it means for the merge."""
    try:
        yield
    except OSError as cause:
        said = f"{cause.strerror or cause}{f' ({cause.filename})' if cause.filename else ''}"
        if journal is None:
            raise Unavailable("cannot_write_directory", f"nothing was changed: {target}: {said}") from cause
        raise Unavailable(
            "merge_interrupted",
            f"the merge is written down in {journal} but could not be finished: {said}; when that is repaired, the next "
            f"merge, or `penstock merge --recover {target}`, finishes it",
        ) from cause


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
