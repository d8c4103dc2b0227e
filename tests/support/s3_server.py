"""A real S3 server of the tests' own (s3proxy): started on a free loopback port, gone when they end."""

import http.client
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ARTIFACT = "org.gaul:s3proxy:4.1.0:jar:jar-with-dependencies"
_JARS = Path(tempfile.gettempdir()) / "s3proxy"
_START_SECONDS = 120.0


@dataclass(frozen=True)
class S3Server:
    endpoint: str  # http://127.0.0.1:…
    folder: Path  # of its buckets
    access_key: str = "penstock"
    secret_key: str = "penstock-secret"

    def create_bucket(self, name: str) -> str:
        (self.folder / name).mkdir()
        return name


def missing() -> str | None:
    """Return the reason why the server cannot be started, or None. Fetches its jar."""
    if shutil.which("java") is None:
        return "Java is not installed (apt-get install openjdk-17-jre-headless)"
    if not list(_JARS.glob("s3proxy-*.jar")):
        command = ["mvn", "-q", "dependency:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={_JARS}"]
        if shutil.which("mvn") is None or subprocess.run(command, capture_output=True).returncode != 0:
            return "s3proxy cannot be fetched with Maven"
    return None


@contextmanager
def server() -> Iterator[S3Server]:
    """Start a server without buckets."""
    (jar,) = _JARS.glob("s3proxy-*.jar")
    with tempfile.TemporaryDirectory(prefix="penstock-s3-") as home, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        running = S3Server(f"http://{address}", Path(home) / "data")
        running.folder.mkdir()
        Path(home, "s3.conf").write_text(
            "s3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.endpoint={running.endpoint}\ns3proxy.identity={running.access_key}\n"
            f"s3proxy.credential={running.secret_key}\n"
            f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={running.folder}\n"
        )
        command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-jar", str(jar)]
        process = subprocess.Popen(
            [*command, "--properties", f"{home}/s3.conf"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait(address, process)
            yield running
        finally:
            process.kill()
            process.wait(30)


def _wait(address: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        connection = http.client.HTTPConnection(address, timeout=10)
        try:
            connection.request("GET", "/")
            if connection.getresponse().status == 403:
                return
        except OSError:
            time.sleep(0.1)
        finally:
            connection.close()
    raise RuntimeError("the S3 server did not start")
