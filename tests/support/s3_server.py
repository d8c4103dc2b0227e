"""A real S3 server of the tests' own (s3proxy): started on a free loopback port, with its objects in a temporary folder.

Its jar is fetched once by Maven, like the jars of Spark, and stays in the cache.
"""

import http.client
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from penstock import maven_jars
from penstock.engines.spark import requirements
from penstock.errors import PenstockError
from support.s3_client import REGION, S3Client

LOCK = Path(__file__).with_name("s3proxy.lock")
_START_SECONDS = 120.0
_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx256m")


@dataclass(frozen=True)
class S3Server:
    endpoint: str  # http://127.0.0.1:…
    access_key: str = "penstock"
    secret_key: str = "penstock-secret"

    @cached_property
    def client(self) -> S3Client:
        return S3Client(self.endpoint, self.access_key, self.secret_key)

    def create_bucket(self, name: str) -> str:
        """Create a bucket and return its name."""
        self.client.create_bucket(name)
        return name

    def objects(self, bucket: str, prefix: str = "") -> dict[str, int]:
        """Return the size of each object by its key."""
        return self.client.objects(bucket, prefix)

    def s3a_settings(self, bucket: str, endpoint: str | None = None) -> dict[str, str]:
        """Return the settings of a Spark session that uses a bucket, as docs/decisions/0016-spark-on-s3a.md explains."""
        settings = {
            "endpoint": endpoint or self.endpoint,
            "endpoint.region": REGION,
            "path.style.access": "true",
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "access.key": self.access_key,
            "secret.key": self.secret_key,
            "fast.upload.buffer": "bytebuffer",
            "input.stream.type": "classic",
        }
        return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


def missing() -> str | None:
    """Return the reason why the server cannot be started, or None. Fetches its jar."""
    if requirements.find_java() is None:
        return "Java is not installed (apt-get install openjdk-17-jre-headless)"
    try:
        maven_jars.fetch_jars(lock=LOCK)
    except PenstockError as error:
        return error.message
    return None


@contextmanager
def server() -> Iterator[S3Server]:
    """Start a server without buckets."""
    java = requirements.find_java()
    (jar,) = maven_jars.fetch_jars(lock=LOCK)
    assert java is not None
    with tempfile.TemporaryDirectory(prefix="penstock-s3-") as folder:
        home = Path(folder)
        process, running = _start(java.program, jar, home)
        try:
            yield running
        finally:
            process.kill()  # the folder goes with it: nothing to save
            process.wait(30)


def _start(java: str, jar: Path, home: Path) -> tuple[subprocess.Popen[bytes], S3Server]:
    """Start the process; if another process took the free port meanwhile, once more with another port."""
    for _ in range(3):
        address = f"127.0.0.1:{_free_port()}"
        running = S3Server(f"http://{address}")
        (home / "data").mkdir(exist_ok=True)
        (home / "s3.conf").write_text(
            "s3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.endpoint={running.endpoint}\n"
            f"s3proxy.identity={running.access_key}\n"
            f"s3proxy.credential={running.secret_key}\n"
            "jclouds.provider=filesystem-nio2\n"
            f"jclouds.filesystem.basedir={home / 'data'}\n"
        )
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                [java, *_JAVA_OPTIONS, "-jar", jar, "--properties", home / "s3.conf"],
                cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"},
            )  # fmt: skip
        if _is_ready(address, process):
            return process, running
    raise RuntimeError(f"the S3 server did not start: {(home / 'log').read_text('utf-8', 'replace')[-2000:]}")


def _is_ready(address: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server refuses an unsigned request. Returns False if the process ends before."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise RuntimeError("the S3 server did not start in time")
        connection = http.client.HTTPConnection(address, timeout=10)
        try:
            connection.request("GET", "/")
            if connection.getresponse().status == 403:
                return True
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    return False


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
