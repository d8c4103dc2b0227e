"""Format commands that work when they are pasted into the caller's shell."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def format_command(*words: object) -> str:
    """Return a call of the running program: by its name if the shell finds it, otherwise by its path."""
    return shlex.join([_program(), *map(str, words)])


def relative_path(path: Path) -> Path:
    """Return the path relative to the current folder, unless it is outside of it."""
    absolute, current = path.absolute(), Path.cwd()
    return absolute.relative_to(current) if absolute.is_relative_to(current) else absolute


def _program() -> str:
    running = Path(sys.argv[0])
    if running.name != "penstock" or not running.is_file():  # started by a program with another name
        running = Path(sys.executable).with_name("penstock")
    on_path = shutil.which("penstock")
    if not running.is_file() or (on_path and Path(on_path).exists() and os.path.samefile(on_path, running)):
        return "penstock"
    return str(relative_path(running))
