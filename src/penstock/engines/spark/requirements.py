"""Check the requirements of Spark (PySpark, Java, a classic master) without importing PySpark, which is slow."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from penstock.errors import Unavailable, Unsupported

SUPPORTED_JAVA_VERSIONS = (17, 21)  # of Spark: the oldest and the newest
_VERSION_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Java:
    """The `java` program that Spark would start."""

    program: str
    description: str | None  # the first line of `java -version`; None: the program does not run
    version: int | None  # None: unknown

    @property
    def is_supported(self) -> bool:
        oldest, newest = SUPPORTED_JAVA_VERSIONS
        return self.version is not None and oldest <= self.version <= newest


def find_java() -> Java | None:
    """Find the program in JAVA_HOME, or on the PATH if JAVA_HOME is not set. Returns None if there is none."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if program is None:
        return None
    try:
        output = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_SECONDS, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return Java(program, None, None)
    number = re.search(r'version "(?:1\.)?(\d+)', output)
    description = output.splitlines()[0] if output else "unknown version"
    return Java(program, description, int(number[1]) if number else None)


def check_requirements(master: str, conf: Mapping[str, str]) -> None:
    """Check that Spark can be started. A version of Java that is unknown or newer is left to Spark.

    Raises:
        Unsupported: PySpark is not installed (missing_extra), or Spark Connect is requested (spark_connect)
        Unavailable: Java is missing (missing_java) or too old (java_too_old)
    """
    if find_spec("pyspark") is None:
        raise Unsupported("missing_extra", extra="spark", package="pyspark")
    check_master(master, conf)
    java = find_java()
    if java is None:
        raise missing_java("no java program was found")
    if java.version is not None and java.version < SUPPORTED_JAVA_VERSIONS[0]:
        raise java_too_old(java.version)


def check_master(master: str, conf: Mapping[str, str]) -> None:
    """Raise `Unsupported` if a setting or a variable requests Spark Connect: Penstock uses the driver's own API."""
    connect_settings = {
        "the master": master if master.startswith("sc://") else None,
        "SPARK_REMOTE": os.environ.get("SPARK_REMOTE"),
        "spark.remote": conf.get("spark.remote"),
        "spark.api.mode": conf.get("spark.api.mode") if conf.get("spark.api.mode") == "connect" else None,
    }
    for setting, value in connect_settings.items():
        if value:
            raise Unsupported("spark_connect.master", {"setting": setting, "value": value})


def missing_java(cause: str) -> Unavailable:
    oldest, newest = SUPPORTED_JAVA_VERSIONS
    return Unavailable("missing_java", {"cause": cause, "oldest": oldest, "newest": newest})


def java_too_old(version: int) -> Unavailable:
    oldest, newest = SUPPORTED_JAVA_VERSIONS
    return Unavailable(
        "java_too_old", {"java": version, "oldest": oldest, "newest": newest}, found=version, needed=oldest
    )
