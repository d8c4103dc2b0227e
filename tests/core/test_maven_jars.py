"""Jars are fetched by Maven, verified and stored atomically. A script takes the place of Maven to fail in each way."""

import hashlib
import threading
from pathlib import Path

import pytest

from penstock import maven_jars
from penstock.errors import Invalid, PenstockError, Unavailable

CONTENT = "content"
SHA256 = hashlib.sha256(CONTENT.encode()).hexdigest()
NAMES = "$(sed 's/<destFileName>/\\n&/g' pom.xml | sed -n 's/^<destFileName>\\([^<]*\\).*/\\1/p')"
DELIVER = f"echo run >> {{log}}; for name in {NAMES}; do printf %s {CONTENT} > $name; done"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "two.lock"
    path.write_text(f"# comment\norg.example:one:1.0 sha256:{SHA256}\n\norg.example:two:2.1:all sha256:{SHA256}\n")
    return path


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "MavenScript":
    script = MavenScript(tmp_path)
    monkeypatch.setenv("PATH", f"{script.program.parent}:/usr/bin:/bin")
    return script


class MavenScript:
    def __init__(self, folder: Path) -> None:
        self.program = folder / "bin" / "mvn"
        self.program.parent.mkdir()
        self._log = folder / "maven.log"
        self._log.touch()
        self.does(DELIVER)

    def does(self, command: str) -> None:
        self.program.write_text(f"#!/bin/sh\n{command.format(log=self._log)}\n")
        self.program.chmod(0o755)

    @property
    def runs(self) -> int:
        return len(self._log.read_text().splitlines())


def _jars(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob("*.jar")}


def test_fetch_jars_stores_all_jars_with_one_run_of_maven(tmp_path: Path, lock: Path, maven: MavenScript) -> None:
    paths = maven_jars.fetch_jars(tmp_path / "a" / "jars", lock)
    assert [path.name for path in paths] == ["one-1.0.jar", "two-2.1-all.jar"]
    assert _jars(tmp_path / "a" / "jars") == {"one-1.0.jar": CONTENT, "two-2.1-all.jar": CONTENT}
    assert maven.runs == 1


def test_fetch_jars_with_stored_jars_does_not_start_maven(tmp_path: Path, lock: Path, maven: MavenScript) -> None:
    paths = maven_jars.fetch_jars(tmp_path / "jars", lock)
    maven.program.unlink()
    assert maven_jars.fetch_jars(tmp_path / "jars", lock) == paths


def test_fetch_jars_replaces_a_changed_jar(tmp_path: Path, lock: Path, maven: MavenScript) -> None:
    first, _ = maven_jars.fetch_jars(tmp_path / "jars", lock)
    first.write_text("changed")
    maven_jars.fetch_jars(tmp_path / "jars", lock)
    assert first.read_text() == CONTENT


def test_fetch_jars_of_several_threads_starts_maven_once(tmp_path: Path, lock: Path, maven: MavenScript) -> None:
    threads = [threading.Thread(target=maven_jars.fetch_jars, args=(tmp_path / "jars", lock)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert maven.runs == 1
    assert len(_jars(tmp_path / "jars")) == 2


@pytest.mark.parametrize(
    ("command", "kind", "reason", "text"),
    [
        (f"for name in {NAMES}; do printf other > $name; done", Invalid, "wrong_jar_checksum", "one-1.0.jar"),
        (f"for name in {NAMES}; do printf {CONTENT} > $name; break; done", Unavailable, "jars_not_fetched", "two-2.1-all"),
        ("echo; echo '[ERROR] cannot resolve'; exit 1", Unavailable, "jars_not_fetched", "[ERROR] cannot resolve"),
        ("exit 7", Unavailable, "jars_not_fetched", "Maven ended with 7"),
    ],
)  # fmt: skip
def test_fetch_jars_failure_reports_the_cause_and_stores_no_wrong_jar(
    tmp_path: Path, lock: Path, maven: MavenScript, command: str, kind: type[PenstockError], reason: str, text: str
) -> None:
    maven.does(command.replace("{", "{{").replace("}", "}}"))
    with pytest.raises(kind) as error:
        maven_jars.fetch_jars(tmp_path / "jars", lock)
    assert error.value.reason == reason
    assert text in error.value.message
    assert set(_jars(tmp_path / "jars").values()) <= {CONTENT}
    assert [path.name for path in (tmp_path / "jars").iterdir() if path.is_dir()] == []


def test_fetch_jars_beyond_the_time_limit_is_unavailable(
    tmp_path: Path, lock: Path, maven: MavenScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven.does("exec sleep 600")
    monkeypatch.setattr(maven_jars, "FETCH_TIMEOUT_SECONDS", 0.05)
    with pytest.raises(Unavailable, match="did not finish"):
        maven_jars.fetch_jars(tmp_path / "jars", lock)


def test_fetch_jars_without_maven_names_the_package_to_install(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="apt-get install maven") as error:
        maven_jars.fetch_jars(tmp_path / "jars", lock)
    assert error.value.reason == "missing_maven"


@pytest.mark.parametrize(
    "line", ["org.example:one sha256:" + SHA256, "a:b:1 md5:" + SHA256, "a:b:1", "a::1 sha256:" + SHA256]
)
def test_read_lock_rejects_an_invalid_line(lock: Path, line: str) -> None:
    lock.write_text(line)
    with pytest.raises(Invalid) as error:
        maven_jars.read_lock(lock)
    assert error.value.reason == "bad_jar_lock"
    assert repr(line) in error.value.message


def test_spark_s3a_lock_contains_38_jars_and_not_the_bundle() -> None:
    jars = maven_jars.read_lock(maven_jars.SPARK_S3A_JARS)
    assert len({jar.file_name for jar in jars}) == 38
    assert {"hadoop-aws", "s3", "s3-transfer-manager", "sts", "apache-client"} <= {jar.artifact for jar in jars}
    assert "bundle" not in {jar.artifact for jar in jars}
