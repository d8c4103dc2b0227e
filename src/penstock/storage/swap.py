"""Change a plain directory all at once: stage, journal, rename. What was interrupted is finished or undone by the next.

Everything that is not yet data lives in a folder of its own beside the directory (`.NAME.penstock`), where no reader of
the directory looks; inside it, under a hidden name, where the directory is a mount point or its parent is closed to us.
The journal is the point of no return: without one, staged files are removed; with one, it is carried out.
"""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

from penstock import faults
from penstock.errors import Invalid, Unavailable

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
        for staged, _ in moves:
            _sync(Path(staged))
        for folder in {Path(staged).parent for staged, _ in moves}:
            _sync(folder)
        _sync(self._place)
        _sync(self._place.parent)
        faults.at("swap.staged")
        journal = {
            "format": _FORMAT,
            "moves": [[os.path.relpath(staged, self._place), final] for staged, final in moves],
            "removes": list(removes),
            "remove_directory": remove_directory,
        }
        draft = self._place / f"{_JOURNAL}.draft"
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
        while (lock := _try_lock(place)) is None:
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


def _try_lock(place: Path) -> int | None:
    """The lock as an open file, or None. It is released with the process, however that ends."""
    place.mkdir(parents=True, exist_ok=True)
    try:
        lock = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:  # the one before us has just cleared the place away
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(place / _LOCK).st_ino == os.fstat(lock).st_ino:  # else it was removed while we took it
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _recover(target: Path, place: Path) -> str | None:
    if (place / _JOURNAL).exists():
        _carry_out(target, place)
        _clear(place)
        return "finished"
    return "undone" if _clear(place) else None


def _carry_out(target: Path, place: Path) -> None:
    """Do what the journal says. All of it may have been done before."""
    journal = _journal(place)
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
    faults.at("swap.done")
    (place / _JOURNAL).unlink()
    _sync(place)


def _journal(place: Path) -> dict[str, Any]:
    path = place / _JOURNAL
    try:
        journal: dict[str, Any] = json.loads(path.read_text("utf-8"))
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


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
