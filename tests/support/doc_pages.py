"""The pages, their blocks, and a reader who pastes one after the other into a terminal and into Python."""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

from penstock.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    str(page.relative_to(ROOT))
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "examples" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
]

PATIENCE = 300  # seconds that a block may take
_FENCE = re.compile(r" *(`{3,}|~{3,}) *(\S*)")
# What goes on until it is stopped: for a terminal of its own.
_STAYS = re.compile(r"(?:\w+=\S+ )*penstock (serve|worker)\b(?!.*--once)(?!.*&$)")
_READY = {
    "serve": re.compile(r"Penstock listens on \S+:(\d+); see \S+ and for Flight on \S+:(\d+)"),
    "worker": re.compile(r'"waiting for runs"'),
}
_COMMENT = re.compile(r"\s+#\s.*")


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # where its text begins
    language: str
    text: str

    @property
    def begins(self) -> tuple[str, str]:
        """Identify the block by its page and its first line."""
        return self.page, " ".join(_COMMENT.sub("", self.text.partition("\n")[0]).split())

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(page: str) -> Iterator[Block]:
    """Yield the code blocks of a page: fenced, or indented by four blanks."""
    lines, n = text(page).splitlines(), 0
    while n < len(lines):
        begin = n
        if fence := _FENCE.match(lines[n]):
            n = next(m for m in range(n + 1, len(lines)) if lines[m].strip() == fence[1])
            yield Block(page, begin + 2, fence[2], "\n".join(lines[begin + 1 : n]) + "\n")
        elif lines[n].startswith("    ") and n and not lines[n - 1].strip():
            while n + 1 < len(lines) and lines[n + 1].startswith("    "):
                n += 1
            yield Block(page, begin + 1, "", "\n".join(line[4:] for line in lines[begin : n + 1]) + "\n")
        n += 1


class Reader:
    """Pastes blocks as they are, in their order. What a page calls otherwise than it is called here is in `instead`.

    A server is left running, on ports that are free, until the next one is started or the reader goes.
    """

    def __init__(self, folder: Path, notes: Path, env: Mapping[str, str], *, spark_here: bool = False) -> None:
        self.folder, self._notes, self._spark_here = folder, notes, spark_here
        self.instead: dict[str, str] = {}  # what stands on the page, and what stands for it
        self.names: dict[str, Any] = {}  # of Python
        self.python_output = ""  # by Python, and by what ran in this process
        self._left: dict[int, str] = {}  # what goes on
        self._pasted = 0
        with (notes / "out").open("wb") as out, (notes / "err").open("wb") as err:
            self._shell = subprocess.Popen(
                ["sh", "-e"],
                cwd=folder,
                env=env,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return (self._notes / "out").read_text() + self.python_output

    @property
    def err(self) -> str:
        return (self._notes / "err").read_text()

    @property
    def env(self) -> dict[str, str]:
        """Return the exported variables of the terminal."""
        self._run(f"env -0 > {self._notes}/env")
        return dict(pair.split("=", 1) for pair in (self._notes / "env").read_text().split("\0") if pair)

    def sh(self, block: Block) -> None:
        before: list[str] = []
        for line in self._meant(block).splitlines():
            command = _COMMENT.sub("", line).rstrip()
            here = self._spark_here and command.startswith("penstock run ")
            if not here and not _STAYS.match(command):
                before.append(line)
                continue
            self._run("\n".join(before))
            before.clear()
            if here:
                self._run_here(command)
            else:
                self._leave(command)
        self._run("\n".join(before))

    def python(self, block: Block) -> None:
        location = "\n" * (block.line - 1)  # so that a traceback tells the line of the page
        with redirect_stdout(StringIO()) as message:
            exec(compile(location + self._meant(block), str(ROOT / block.page), "exec"), self.names)
        self.python_output += message.getvalue()

    def go(self) -> None:
        """End what is left running, in order; it must have gone on until now, and end well."""
        for number in list(self._left):
            self._end(number)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()

    def _meant(self, block: Block) -> str:
        message = block.text
        for printed, real in self.instead.items():
            message = message.replace(printed, real)
        return message

    def _run(self, script: str) -> None:
        """Run the block in the shell of the page, which ends if a command fails."""
        if not script.strip():
            return
        self._pasted += 1
        file, done = self._notes / f"{self._pasted}.sh", self._notes / f"{self._pasted}.done"
        file.write_text(script + "\n")
        assert self._shell.stdin
        self._shell.stdin.write(f". {file} < /dev/null\n: > {done}\n".encode())
        self._shell.stdin.flush()
        _wait(lambda: done.exists() or self._shell.poll() is not None, lambda: f"this takes too long:\n{script}")
        assert done.exists(), f"{script}\n--- said:\n{self.out[-2000:]}\n{self.err[-4000:]}"

    def _run_here(self, command: str) -> None:
        """Run the block in this process, which has a Spark session."""
        response = BytesIO()
        with patch.dict(os.environ, self.env), redirect_stdout(TextIOWrapper(response, "utf-8", write_through=True)):
            code = _exit(shlex.split(command)[1:])
            self.python_output += response.getvalue().decode()
        assert code == 0, f"{command}\n--- said:\n{self.python_output[-2000:]}"

    def _leave(self, command: str) -> None:
        role = _STAYS.match(command)[1]  # type: ignore[index]
        if role == "serve":
            for number in [number for number, before in self._left.items() if before == "serve"]:
                self._end(number)  # its ports are wanted
            command += " --http-port 0 --flight-port 0"
        number = len(list(self._notes.glob("left-*")))
        log, pid = self._notes / f"left-{number}", self._notes / f"pid-{number}"
        self._run(f"{command} > {log} 2>&1 &\nLEFT_{number}=$!\necho $LEFT_{number} > {pid}")
        self._left[number] = role
        process = Path("/proc", pid.read_text().strip(), "stat")

        def ready() -> re.Match[str] | None:
            message = log.read_text() if log.exists() else ""
            assert process.read_text().rpartition(")")[2].split()[0] != "Z", (
                f"{command}\n--- ended, and said:\n{message}"
            )
            return _READY[role].search(message)

        _wait(ready, lambda: f"this takes too long:\n{command}\n--- said:\n{log.read_text()[-4000:]}")
        if role == "serve" and (response := ready()):
            self.instead |= {":8080": f":{response[1]}", ":8815": f":{response[2]}"}

    def _end(self, number: int) -> None:
        del self._left[number]
        self._run(f"kill $LEFT_{number}\nwait $LEFT_{number}")


@contextmanager
def reading(folder: Path, notes: Path, env: Mapping[str, str], *, spark_here: bool = False) -> Iterator[Reader]:
    reader = Reader(folder, notes, env, spark_here=spark_here)
    try:
        yield reader
        reader.go()
    finally:
        reader.close()


def _exit(words: list[str]) -> int:
    try:
        main(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _wait(done: Any, otherwise: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.02)
