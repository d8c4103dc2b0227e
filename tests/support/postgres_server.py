"""A PostgreSQL server for the tests on a free port."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def binaries() -> Path | None:
    """Return the folder of the PostgreSQL programs, or None if it is not installed."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3].split(".")[0]))
    if programs:
        return programs[-1].parent
    on_path = shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path else None


@contextmanager
def server() -> Iterator[str]:
    """Start a server, and yield the URL of an empty database with its owner as the user."""
    programs = binaries()
    assert programs is not None
    with tempfile.TemporaryDirectory(prefix="penstock-pg-") as folder:
        home, user = Path(folder), _unprivileged()
        if user:
            os.chown(home, user.pw_uid, user.pw_gid)
        data, port = home / "data", _free_port()

        def run(*command: str) -> None:
            subprocess.run(command, check=True, capture_output=True, user=user and user.pw_uid, cwd=home)

        run(str(programs / "initdb"), "-D", str(data), "-U", "owner", "--auth=trust", "-E", "UTF8", "--no-sync")
        process = subprocess.Popen(
            [programs / "postgres", "-D", data, "-p", str(port), "-k", "", "-c", "listen_addresses=127.0.0.1",
             "-c", "fsync=off", "-c", "max_connections=200"],
            user=user and user.pw_uid, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait(programs, port, process)
            run(str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "owner", "penstock")
            yield f"postgresql://owner@127.0.0.1:{port}/penstock"
        finally:
            process.send_signal(signal.SIGINT)  # at once, without waiting for clients
            process.wait(30)


def _unprivileged() -> pwd.struct_passwd | None:
    """Return a user for the server, because PostgreSQL does not run as root; None: the current user."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("no user to run PostgreSQL as")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _wait(programs: Path, port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if process.poll() is not None:
            raise RuntimeError("PostgreSQL did not start")
        if subprocess.run([programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]).returncode == 0:
            return
        time.sleep(0.1)
    raise RuntimeError("PostgreSQL did not start in time")
