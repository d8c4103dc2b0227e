"""The command `serve` in a separate process."""

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
SLOW_ROUTE_SCRIPT = (  # a route that prints when it begins and responds later
    "import time; from fastapi import APIRouter, Request, Response; from penstock.rest import app; r = APIRouter(); "
    "wait = lambda request: time.sleep(float(request.query_params['seconds'])); "
    "slow = lambda request: (print('begun', flush=True), wait(request), Response('done'))[2]; "
    "slow.__annotations__ = {'request': Request}; r.add_api_route('/slow', slow); "
    "app.ROUTERS += (r,); app.PUBLIC_ROUTERS += (r,); "
)


class ServeProcess:
    """The command `penstock serve` in a separate process."""

    def __init__(self, folder: Path, *args: str, before: str = "", **env: str) -> None:
        flight_options = () if {"--flight-port", "--no-flight"} & {*args} else ("--flight-port", "0")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(before), "serve", *args, *flight_options, "--no-ui"],
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
def served(folder: Path, *args: str, **options: str) -> Iterator[ServeProcess]:
    server = ServeProcess(folder, *args, **options)
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
        upload = {"content": b"id\n1\n2\n", "headers": {"content-type": "text/csv", "x-request-id": "mine"}}
        created = httpx.post(f"{address}/datasets?name=shop.orders", **upload)  # type: ignore[arg-type]
        check_response(created)
        assert created.status_code == 201
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
    with served(tmp_path, *options) as first_server:
        first_address = first_server.address()
        with served(tmp_path, *options) as second_server:
            second_address = second_server.address()
            assert first_address != second_address
            httpx.post(f"{first_address}/datasets", json={"name": "a.b", "schema": [{"name": "id", "type": "int64"}]})
            assert [dataset["name"] for dataset in httpx.get(f"{second_address}/datasets").json()["value"]] == ["a.b"]


def test_server_finishes_active_request_before_exit(tmp_path: Path) -> None:
    with served(tmp_path, "--dev", "--http-port", "0", before=SLOW_ROUTE_SCRIPT) as server:
        address, texts = server.address(), list[str]()
        thread = threading.Thread(target=lambda: texts.append(httpx.get(f"{address}/slow?seconds=1", timeout=30).text))
        thread.start()
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "begun\n"
        server.stop()
        thread.join()
        assert texts == ["done"]
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/healthz")


def test_server_aborts_request_after_drain(tmp_path: Path) -> None:
    # The last default of HttpLimits is drain_seconds.
    short_drain_script = "from penstock.rest.context import HttpLimits; d = HttpLimits.__init__; d.__defaults__ = (*d.__defaults__[:-1], 1); "
    with served(tmp_path, "--dev", "--http-port", "0", before=SLOW_ROUTE_SCRIPT + short_drain_script) as server:
        address, responses = server.address(), list[httpx.Response]()
        thread = threading.Thread(target=lambda: responses.append(httpx.get(f"{address}/slow?seconds=600", timeout=60)))
        thread.start()
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "begun\n"
        server.process.send_signal(signal.SIGTERM)
        _, err = server.process.communicate(timeout=60)
        thread.join()
    check_response(responses[0])
    assert responses[0].json()["code"] == "SERVER_STOPPING"
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


INVALID_OPTIONS = [
    (["--http-port", "0"], 1, "PENSTOCK_JWT_SECRET"),
    (["--dev", "--host", "0.0.0.0"], 1, "loopback"),
    (["--dev", "--host", "::"], 1, "loopback"),
    (["--dev", "--host", "192.0.2.1"], 1, "loopback"),
    (["--dev", "--host", "no such host"], 1, "loopback"),
    (["--dev", "--http-port", "70000"], 2, "70000"),
    (["--dev", "--tls-cert", "x.pem"], 2, "--tls-key"),
    (["--dev", "--tls-cert", "x.pem", "--tls-key", "y.pem", "--http-port", "0"], 1, "certificate"),
]


@pytest.mark.parametrize(("args", "code", "message"), INVALID_OPTIONS, ids=lambda value: str(value)[:40])
def test_serve_reports_bad_configuration_before_listening(
    tmp_path: Path, args: list[str], code: int, message: str
) -> None:
    with served(tmp_path, *args) as server:
        out, err = server.process.communicate(timeout=60)
    assert (server.process.returncode, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_serve_with_taken_port_reports_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
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


def write_certificate(folder: Path) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(1), now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return "cert.pem", "key.pem"


def test_serve_with_certificate_uses_https(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    with served(tmp_path, "--dev", "--http-port", "0", "--tls-cert", cert, "--tls-key", key) as server:
        address = server.address()
        assert address.startswith("https://")
        context = ssl.create_default_context(cafile=str(tmp_path / cert))
        check_response(httpx.get(f"{address}/healthz", verify=context))


def test_periodic_job_is_repeated_after_failure_and_ends_with_server(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    app.add_api_route("/", lambda: Response())
    server, rounds, three_rounds = Server(app, "127.0.0.1", 0, HttpLimits()), list[int](), threading.Event()

    def job() -> None:
        rounds.append(1)
        if len(rounds) == 3:
            three_rounds.set()
        raise RuntimeError("the job fails")

    server.add_periodic_job(0.001, job)
    server_thread = threading.Thread(target=server.run)
    server_thread.start()
    assert three_rounds.wait(30)
    server.stop()
    server_thread.join(30)
    round_count = len(rounds)
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock job"]
    assert len([record for record in caplog.records if record.message == "A periodic job failed"]) == round_count
