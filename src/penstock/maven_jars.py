"""Fetch pinned jars with the Maven client and verify their checksums. Uses the standard library only.

A lock file names one jar in each line: `group:artifact:version[:classifier] sha256:<hex>`. Maven decides which repository
is used (`settings.xml`); Penstock names none.

The jars of `SPARK_S3A_JARS` let Spark 4.3 read and write `s3a://` paths. Give Spark their paths when it starts: a list
with commas as `spark.jars` (Spark copies them to the workers of a cluster), or the folder as `<folder>/*` in
`spark.driver.extraClassPath` and `spark.executor.extraClassPath` (every machine has the folder, as in an image).
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from penstock.errors import Invalid, Unavailable

SPARK_S3A_JARS = Path(__file__).with_name("spark_s3a_jars.lock")
FETCH_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar in a Maven repository and the checksum of its content."""

    group: str
    artifact: str
    version: str
    classifier: str  # or ""
    sha256: str

    @property
    def file_name(self) -> str:
        return "-".join(filter(None, (self.artifact, self.version, self.classifier))) + ".jar"


def read_lock(lock: Path) -> list[Jar]:
    """Return the jars of a lock file.

    Raises:
        Invalid: a line has another form
    """
    lines = (line.partition("#")[0].strip() for line in lock.read_text("utf-8").splitlines())
    return [_parse(line, lock) for line in lines if line]


def default_folder(lock: Path = SPARK_S3A_JARS) -> Path:
    """Return the folder for the jars of a lock file in the user's cache (`XDG_CACHE_HOME`, or `~/.cache`)."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "penstock" / "jars" / lock.stem


def fetch_jars(folder: Path | None = None, lock: Path = SPARK_S3A_JARS) -> list[Path]:
    """Fetch the jars of a lock file that a folder does not contain, and return the paths of all.

    A jar gets its final name after its checksum is verified, so a folder never contains a partial jar. If several
    processes fetch into one folder, one of them starts Maven and the others wait.

    Args:
        folder: where the jars are stored; created if it is missing. Default: `default_folder(lock)`
        lock: the lock file

    Raises:
        Unavailable: Maven is missing (missing_maven), or it could not fetch a jar (jars_not_fetched)
        Invalid: a fetched jar has another checksum (wrong_jar_checksum), or the lock file is invalid (bad_jar_lock)
    """
    jars, folder = read_lock(lock), folder or default_folder(lock)
    if missing := _missing(jars, folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _exclusive(folder):
                if missing := _missing(missing, folder):
                    _fetch(missing, folder)
        except OSError as error:
            raise Unavailable("jars_not_fetched", folder=str(folder), cause=error.strerror or str(error)) from error
    return [folder / jar.file_name for jar in jars]


def _parse(line: str, lock: Path) -> Jar:
    coordinate, _, checksum = line.partition(" ")
    algorithm, _, sha256 = checksum.strip().partition(":")
    parts = coordinate.split(":")
    if len(parts) not in (3, 4) or not all(parts) or algorithm != "sha256" or len(sha256) != 64:
        raise Invalid("bad_jar_lock", file=str(lock), line=line)
    group, artifact, version, *classifier = parts
    return Jar(group, artifact, version, "".join(classifier), sha256)


def _missing(jars: Sequence[Jar], folder: Path) -> list[Jar]:
    """Return the jars that a folder does not contain, or contains with another content."""
    return [jar for jar in jars if _sha256(folder / jar.file_name) != jar.sha256]


def _sha256(file: Path) -> str | None:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except FileNotFoundError:
        return None


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    with (folder / ".fetch.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
        yield


def _fetch(jars: Sequence[Jar], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temporary:  # the same file system, for the rename
        _run_maven(jars, Path(temporary), folder)
        for jar in jars:
            file = Path(temporary) / jar.file_name
            sha256 = _sha256(file)
            if sha256 is None:
                raise Unavailable(
                    "jars_not_fetched", folder=str(folder), cause=f"Maven did not deliver {jar.file_name}"
                )
            if sha256 != jar.sha256:
                raise Invalid("wrong_jar_checksum", file=jar.file_name, sha256=sha256, expected=jar.sha256)
            file.chmod(0o644)
            file.replace(folder / jar.file_name)


def _run_maven(jars: Sequence[Jar], output: Path, folder: Path) -> None:
    """Copy the jars, without their dependencies, by one start of Maven."""
    program = shutil.which("mvn")
    if program is None:
        raise Unavailable("missing_maven")
    (output / "pom.xml").write_text(_project(jars, output), "utf-8")
    try:
        run = subprocess.run(
            [program, "--batch-mode", "--quiet", "-Dstyle.color=never", "--file", "pom.xml", "dependency:copy"],
            cwd=output, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=FETCH_TIMEOUT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        cause = f"Maven did not finish in {FETCH_TIMEOUT_SECONDS:.0f} seconds"
        raise Unavailable("jars_not_fetched", folder=str(folder), cause=cause) from None
    if run.returncode != 0:
        lines = [line for line in run.stdout.splitlines() if line.strip()]
        cause = lines[0][:500] if lines else f"Maven ended with {run.returncode}"
        raise Unavailable("jars_not_fetched", folder=str(folder), cause=cause)


def _project(jars: Sequence[Jar], output: Path) -> str:
    """Return a Maven project that copies the jars."""
    items = "".join(
        "<artifactItem>"
        + _element("groupId", jar.group)
        + _element("artifactId", jar.artifact)
        + _element("version", jar.version)
        + (_element("classifier", jar.classifier) if jar.classifier else "")
        + _element("destFileName", jar.file_name)
        + "</artifactItem>"
        for jar in jars
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>penstock</groupId><artifactId>jars</artifactId><version>1</version>"
        "<build><plugins><plugin><artifactId>maven-dependency-plugin</artifactId><configuration>"
        f"{_element('outputDirectory', str(output))}<artifactItems>{items}</artifactItems>"
        "</configuration></plugin></plugins></build></project>\n"
    )


def _element(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"
