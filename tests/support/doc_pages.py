"""Run the code blocks of documentation pages."""

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

TIMEOUT_SECONDS = 300  # seconds that a block may take
_FENCE = re.compile(r" *(`{3,}|~{3,}) *(\S*)")
# Commands that run until they are stopped.
_SERVICE_COMMAND = re.compile(r"(?:\w+=\S+ )*penstock (serve|worker)\b(?!.*--once)(?!.*&$)")
_READY = {
    "serve": re.compile(r"Penstock listens on \S+:(\d+); see \S+ and for Flight on \S+:(\d+)"),
    "worker": re.compile(r'"waiting for runs"'),
}
_COMMENT = re.compile(r"\s+#\s.*")


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # the line of its first text line
    language: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        """Identify the block by its page and its first line."""
        return self.page, " ".join(_COMMENT.sub("", self.text.partition("\n")[0]).split())

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(page: str) -> Iterator[Block]:
    """Yield the code blocks of a page: fenced, or indented by four spaces."""
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


class PageRunner:
    """Run the blocks of a page in their order, in one shell and one Python namespace.

    `replacements` maps texts of the page to the values of the test. A server runs on free ports until the next server
    starts or `stop_services` is called.
    """

    def __init__(self, folder: Path, notes: Path, env: Mapping[str, str], *, has_spark: bool = False) -> None:
        self.folder, self._notes, self._has_spark = folder, notes, has_spark
        self.replacements: dict[str, str] = {}  # text of the page → value of the test
        self.names: dict[str, Any] = {}  # variables of the Python blocks
        self.python_output = ""  # output of Python blocks, and of commands that ran in this process
        self._services: dict[int, str] = {}  # role by number
        self._script_no = 0
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
        lines: list[str] = []
        for line in self._replaced(block).splitlines():
            command = _COMMENT.sub("", line).rstrip()
            in_process = self._has_spark and command.startswith("penstock run ")
            if not in_process and not _SERVICE_COMMAND.match(command):
                lines.append(line)
                continue
            self._run("\n".join(lines))
            lines.clear()
            if in_process:
                self._run_here(command)
            else:
                self._start_service(command)
        self._run("\n".join(lines))

    def python(self, block: Block) -> None:
        location = "\n" * (block.line - 1)  # so that a traceback shows the line of the page
        with redirect_stdout(StringIO()) as output:
            exec(compile(location + self._replaced(block), str(ROOT / block.page), "exec"), self.names)
        self.python_output += output.getvalue()

    def stop_services(self) -> None:
        """Stop the services in order; each must still run, and exit without an error."""
        for service_no in list(self._services):
            self._end(service_no)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()

    def _replaced(self, block: Block) -> str:
        text = block.text
        for printed, replacement in self.replacements.items():
            text = text.replace(printed, replacement)
        return text

    def _run(self, script: str) -> None:
        """Run the block in the shell of the page, which ends if a command fails."""
        if not script.strip():
            return
        self._script_no += 1
        file, done = self._notes / f"{self._script_no}.sh", self._notes / f"{self._script_no}.done"
        file.write_text(script + "\n")
        assert self._shell.stdin
        self._shell.stdin.write(f". {file} < /dev/null\n: > {done}\n".encode())
        self._shell.stdin.flush()
        _wait(lambda: done.exists() or self._shell.poll() is not None, lambda: f"timeout:\n{script}")
        assert done.exists(), f"{script}\n--- output:\n{self.out[-2000:]}\n{self.err[-4000:]}"

    def _run_here(self, command: str) -> None:
        """Run the block in this process, which has a Spark session."""
        output = BytesIO()
        with patch.dict(os.environ, self.env), redirect_stdout(TextIOWrapper(output, "utf-8", write_through=True)):
            code = _exit(shlex.split(command)[1:])
            self.python_output += output.getvalue().decode()
        assert code == 0, f"{command}\n--- output:\n{self.python_output[-2000:]}"

    def _start_service(self, command: str) -> None:
        role = _SERVICE_COMMAND.match(command)[1]  # type: ignore[index]
        if role == "serve":
            for service_no in [service_no for service_no, name in self._services.items() if name == "serve"]:
                self._end(service_no)  # the next server uses its ports
            command += " --http-port 0 --flight-port 0"
        service_no = len(list(self._notes.glob("service-*")))
        log, pid = self._notes / f"service-{service_no}", self._notes / f"pid-{service_no}"
        self._run(f"{command} > {log} 2>&1 &\nSERVICE_{service_no}=$!\necho $SERVICE_{service_no} > {pid}")
        self._services[service_no] = role
        process = Path("/proc", pid.read_text().strip(), "stat")

        def ready() -> re.Match[str] | None:
            output = log.read_text() if log.exists() else ""
            assert process.read_text().rpartition(")")[2].split()[0] != "Z", f"{command}\n--- ended, output:\n{output}"
            return _READY[role].search(output)

        _wait(ready, lambda: f"timeout:\n{command}\n--- output:\n{log.read_text()[-4000:]}")
        if role == "serve" and (ports := ready()):
            self.replacements |= {":8080": f":{ports[1]}", ":8815": f":{ports[2]}"}

    def _end(self, service_no: int) -> None:
        del self._services[service_no]
        self._run(f"kill $SERVICE_{service_no}\nwait $SERVICE_{service_no}")


@contextmanager
def run_page(folder: Path, notes: Path, env: Mapping[str, str], *, has_spark: bool = False) -> Iterator[PageRunner]:
    runner = PageRunner(folder, notes, env, has_spark=has_spark)
    try:
        yield runner
        runner.stop_services()
    finally:
        runner.close()


def _exit(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _wait(condition: Any, message: Any) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, message()
        time.sleep(0.02)
