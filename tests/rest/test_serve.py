"""The command `serve` in a process of its own."""

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

from penstock.rest.context import HttpLimits
from penstock.rest.server import Server, listening_socket
from rest.rest_client import SECRET, bearer, check_response, token

SCRIPT = "from penstock.cli import cli, main; from penstock.cli.serve import serve; cli.add_command(serve); {}main()"
SLOW = (  # a route that prints when it begins and answers later
    "import time; from fastapi import APIRouter, Request, Response; from penstock.rest import app; r = APIRouter(); "
    "wait = lambda request: time.sleep(float(request.query_params['seconds'])); "
    "slow = lambda request: (print('begun', flush=True), wait(request), Response('done'))[2]; "
    "slow.__annotations__ = {'request': Request}; r.add_api_route('/slow', slow); "
    "app.ROUTERS += (r,); app.PUBLIC_ROUTERS += (r,); "
)


class Served:
    def __init__(self, folder: Path, *args: str, before: str = "", **env: str) -> None:
        beside = () if {"--flight-port", "--no-flight"} & {*args} else ("--flight-port", "0")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(before), "serve", *args, *beside, "--no-ui"],
            cwd=folder,
            env={**environment, "PENSTOCK_DURABLE": "no", **env},
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
        """Stop the server and return its log."""
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
def test_serve_dev_starts_with_one_command(tmp_path: Path, number: int) -> None:
    with served(tmp_path, "--dev", "--workspace", "lake", "--http-port", "0") as server:
        address = server.address()
        assert httpx.get(f"{address}/readyz").json()["status"] == "ready"
        rows = {"content": b"id\n1\n2\n", "headers": {"content-type": "text/csv", "x-request-id": "mine"}}
        made = httpx.post(f"{address}/datasets?name=shop.orders", **rows)  # type: ignore[arg-type]
        check_response(made)
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


def test_two_servers_share_one_workspace(tmp_path: Path) -> None:
    options = ("--dev", "--workspace", "lake", "--http-port", "0")
    with served(tmp_path, *options) as one:
        first = one.address()
        with served(tmp_path, *options) as two:
            second = two.address()
            assert first != second
            httpx.post(f"{first}/datasets", json={"name": "a.b", "schema": [{"name": "id", "type": "int64"}]})
            assert [each["name"] for each in httpx.get(f"{second}/datasets").json()["value"]] == ["a.b"]


def test_server_finishes_active_request_before_exit(tmp_path: Path) -> None:
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


def test_server_aborts_request_after_drain(tmp_path: Path) -> None:
    # The last default of the limits is the time to drain.
    quick = "from penstock.rest.context import HttpLimits; d = HttpLimits.__init__; d.__defaults__ = (*d.__defaults__[:-1], 1); "
    with served(tmp_path, "--dev", "--http-port", "0", before=SLOW + quick) as server:
        address, answers = server.address(), list[httpx.Response]()
        asking = threading.Thread(target=lambda: answers.append(httpx.get(f"{address}/slow?seconds=600", timeout=60)))
        asking.start()
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "begun\n"
        server.process.send_signal(signal.SIGTERM)
        _, err = server.process.communicate(timeout=60)
        asking.join()
    check_response(answers[0])
    assert answers[0].json()["code"] == "SERVER_STOPPING"
    assert server.process.returncode == 1
    assert "Active requests are aborted" in err


def test_serve_with_keys_requires_tokens(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("args", "code", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_serve_reports_bad_configuration_before_listening(
    tmp_path: Path, args: list[str], code: int, message: str
) -> None:
    with served(tmp_path, *args) as server:
        out, err = server.process.communicate(timeout=60)
    assert (server.process.returncode, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_serve_with_taken_port_reports_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with served(tmp_path, "--dev", "--http-port", str(port)) as server:
            _, err = server.process.communicate(timeout=60)
    assert f"Cannot listen on 127.0.0.1 port {port}" in err


def test_listening_socket_disables_delayed_sends() -> None:
    with (
        listening_socket("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
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


def test_serve_with_certificate_uses_https(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with served(tmp_path, "--dev", "--http-port", "0", "--tls-cert", cert, "--tls-key", key) as server:
        address = server.address()
        assert address.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(tmp_path / cert))
        check_response(httpx.get(f"{address}/healthz", verify=trusting))


def test_periodic_job_is_repeated_after_failure_and_ends_with_server(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    app.add_api_route("/", lambda: Response())
    server, rounds, enough = Server(app, "127.0.0.1", 0, HttpLimits()), list[int](), threading.Event()

    def job() -> None:
        rounds.append(1)
        if len(rounds) == 3:
            enough.set()
        raise RuntimeError("not today")

    server.add_periodic_job(0.001, job)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert enough.wait(30)
    server.stop()
    thread.join(30)
    after = len(rounds)
    assert not [each for each in threading.enumerate() if each.name == "penstock job"]
    assert len([record for record in caplog.records if record.message == "A periodic job failed"]) == after
