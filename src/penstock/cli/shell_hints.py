"""Commands that work as they are printed, from where somebody is."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def command(*words: object) -> str:
    """A call of the program that is running: by its name if that is what the shell would find, else by its path."""
    return shlex.join([_program(), *map(str, words)])


def near(path: Path) -> Path:
    """The path from here, unless that leads up."""
    there, here = path.absolute(), Path.cwd()
    return there.relative_to(here) if there.is_relative_to(here) else there


def _program() -> str:
    running = Path(sys.argv[0])
    if running.name != "penstock" or not running.is_file():  # started by a program of another name
        running = Path(sys.executable).with_name("penstock")
    known = shutil.which("penstock")
    if not running.is_file() or (known and Path(known).exists() and os.path.samefile(known, running)):
        return "penstock"
    return str(near(running))
