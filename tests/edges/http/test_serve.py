"""The command `serve`, in a process of its own, as an operator meets it."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from fastapi import FastAPI, Response

from edges.http.client import SECRET, bearer, check, token
from penstock.rest.context import HttpLimits
from penstock.rest.server import Server, _bound

SCRIPT = "from penstock.cli import cli, main; from penstock.cli.serve import serve; cli.add_command(serve); {}main()"
SLOW = (  # a route that says that it began, and answers a moment later
    "import time; from fastapi import APIRouter; from penstock.http import app; r = APIRouter(); "
    "r.add_api_route('/slow', lambda seconds: (print('begun', flush=True), time.sleep(float(seconds)), 'done')[2]); "
    "app.ROUTERS += (r,); app.OPEN += (r,); "
)


class Served:
    def __init__(self, folder: Path, *args: str, before: str = "", **env: str) -> None:
        beside = () if {"--flight-port", "--no-flight"} & {*args} else ("--flight-port", "0")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(before), "serve", *args, *beside, "--no-ui"],
            cwd=folder,
            env={**kept, "PENSTOCK_DURABLE": "no", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def address(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("Penstock listens on http"), self.process.communicate()
        return line.split()[3].rstrip(";")

    def stop(self, number: int = signal.SIGTERM) -> list[dict[str, Any]]:
        """Its log, after it ended well."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, (out, err)
        return [json.loads(line) for line in err.splitlines()]


@contextmanager
def served(folder: Path, *args: str, **options: str) -> Iterator[Served]:
    server = Served(folder, *args, **options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_developer_needs_one_command(tmp_path: Path, number: int) -> None:
    with served(tmp_path, "--dev", "--workspace", "lake", "--http-port", "0") as server:
        address = server.address()
        assert httpx.get(f"{address}/readyz").json()["status"] == "ready"
        rows = {"content": b"id\n1\n2\n", "headers": {"content-type": "text/csv", "x-request-id": "mine"}}
        made = httpx.post(f"{address}/datasets?name=shop.orders", **rows)  # type: ignore[arg-type]
        check(made)
        assert made.status_code == 201
        assert httpx.get(f"{address}/docs").status_code == 200
        log = server.stop(number)
    assert (tmp_path / "lake" / "penstock.json").exists()
    (line,) = [line for line in log if line.get("request_id") == "mine"]
    assert (line["method"], line["route"], line["path"], line["status"]) == ("POST", "/datasets", "/datasets", 201)
    assert [line["message"] for line in log if line["logger"] != "penstock.access"] == [
        "listening",  # for Flight
        "listening",
        "stopping",
        "stopped",
    ]


def test_two_servers_share_a_workspace_on_two_ports(tmp_path: Path) -> None:
    options = ("--dev", "--workspace", "lake", "--http-port", "0")
    with served(tmp_path, *options) as one:
        first = one.address()
        with served(tmp_path, *options) as two:
            second = two.address()
            assert first != second
            httpx.post(f"{first}/datasets", json={"name": "a.b", "schema": [{"name": "id", "type": "int64"}]})
            assert [each["name"] for each in httpx.get(f"{second}/datasets").json()["value"]] == ["a.b"]


def test_a_request_under_way_is_finished_before_the_end(tmp_path: Path) -> None:
    with served(tmp_path, "--dev", "--http-port", "0", before=SLOW) as server:
        address, answers = server.address(), list[str]()
        asking = threading.Thread(
            target=lambda: answers.append(httpx.get(f"{address}/slow?seconds=1", timeout=30).text)
        )
        asking.start()
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "begun\n"
        server.stop()
        asking.join()
        assert answers == ["done"]
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/healthz")


def test_a_request_that_does_not_end_is_cut(tmp_path: Path) -> None:
    # The last default of the limits is the time to drain.
    quick = "from penstock.http.edge import HttpLimits; d = HttpLimits.__init__; d.__defaults__ = (*d.__defaults__[:-1], 1); "
    with served(tmp_path, "--dev", "--http-port", "0", before=SLOW + quick) as server:
        address, answers = server.address(), list[httpx.Response]()
        asking = threading.Thread(target=lambda: answers.append(httpx.get(f"{address}/slow?seconds=600", timeout=60)))
        asking.start()
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "begun\n"
        server.process.send_signal(signal.SIGTERM)
        _, err = server.process.communicate(timeout=60)
        asking.join()
    check(answers[0])
    assert answers[0].json()["code"] == "SERVER_STOPPING"
    assert server.process.returncode == 1
    assert "requests that were still under way are cut" in err


def test_with_keys_only_tokens_open(tmp_path: Path) -> None:
    with served(tmp_path, "--dev", "--http-port", "0") as server:
        server.address()
        server.stop()
    with served(tmp_path, "--http-port", "0", PENSTOCK_JWT_SECRET=SECRET) as server:
        address = server.address()
        assert httpx.get(f"{address}/datasets").status_code == 401
        assert httpx.get(f"{address}/datasets", headers=bearer(token())).status_code == 200
        log = server.stop()
    assert SECRET not in json.dumps(log)
    assert token()[:40] not in json.dumps(log)


REFUSED = [
    (["--http-port", "0"], 1, "PENSTOCK_JWT_SECRET"),
    (["--dev", "--host", "0.0.0.0"], 1, "loopback"),
    (["--dev", "--host", "::"], 1, "loopback"),
    (["--dev", "--host", "192.0.2.1"], 1, "loopback"),
    (["--dev", "--host", "no such host"], 1, "loopback"),
    (["--dev", "--http-port", "70000"], 2, "70000"),
    (["--dev", "--tls-cert", "x.pem"], 2, "--tls-key"),
    (["--dev", "--tls-cert", "x.pem", "--tls-key", "y.pem", "--http-port", "0"], 1, "certificate"),
]


@pytest.mark.parametrize(("args", "code", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_served_is_said_before_anything_listens(
    tmp_path: Path, args: list[str], code: int, said: str
) -> None:
    with served(tmp_path, *args) as server:
        out, err = server.process.communicate(timeout=60)
    assert (server.process.returncode, out) == (code, "")
    assert said in err
    assert "Traceback" not in err


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with served(tmp_path, "--dev", "--http-port", str(port)) as server:
            _, err = server.process.communicate(timeout=60)
    assert f"cannot listen on 127.0.0.1 port {port}" in err


def test_no_answer_waits_for_its_own_acknowledgement() -> None:
    with _bound("127.0.0.1", 0) as place, socket.create_connection(place.getsockname()), place.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def certificate(folder: Path) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(1), now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return "cert.pem", "key.pem"


def test_a_certificate_makes_it_https(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with served(tmp_path, "--dev", "--http-port", "0", "--tls-cert", cert, "--tls-key", key) as server:
        address = server.address()
        assert address.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(tmp_path / cert))
        check(httpx.get(f"{address}/healthz", verify=trusting))


def test_a_job_runs_again_after_it_failed_and_ends_with_the_server(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    app.add_api_route("/", lambda: Response())
    server, rounds, enough = Server(app, "127.0.0.1", 0, HttpLimits()), list[int](), threading.Event()

    def job() -> None:
        rounds.append(1)
        if len(rounds) == 3:
            enough.set()
        raise RuntimeError("not today")

    server.every(0.001, job)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert enough.wait(30)
    server.stop()
    thread.join(30)
    after = len(rounds)
    assert not [each for each in threading.enumerate() if each.name == "penstock job"]
    assert len([record for record in caplog.records if record.message == "a periodic job failed"]) == after
