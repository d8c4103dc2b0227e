"""The command `serve` runs REST and Flight in one process."""

import json
import re
import signal
import socket
import threading
from pathlib import Path

import grpc
import httpx
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from flight.raw_client import SECRET, token
from penstock.flight import flight_pb2 as pb
from penstock.flight.interceptor import SERVICE_NAME
from rest.test_serve import ServeProcess, served, write_certificate

ORDERS = fl.Ticket(json.dumps({"schema_name": "shop", "table_name": "orders"}))


def read_addresses(server: ServeProcess) -> tuple[str, str]:
    assert server.process.stdout is not None
    line = server.process.stdout.readline()
    match = re.fullmatch(r"Penstock listens on (\S+); see \S+, and for Flight on (\S+)\n", line)
    assert match, (line, server.process.communicate())
    return match[1], match[2]


def test_table_created_over_rest_is_readable_over_flight_with_metrics(tmp_path: Path) -> None:
    with served(tmp_path, "--dev", "--http-port", "0", "--flight-port", "0") as server:
        http, flight = read_addresses(server)
        upload = {"content": b"id\n1\n2\n", "headers": {"content-type": "text/csv"}}
        assert httpx.post(f"{http}/datasets?name=shop.orders", **upload).status_code == 201  # type: ignore[arg-type]
        with fl.connect(flight) as client:
            assert (
                client.do_get(ORDERS, fl.FlightCallOptions(headers=[(b"x-request-id", b"mine")]))
                .read_all()
                .equals(pa.table({"id": [1, 2]}))
            )
            with pytest.raises(pa.ArrowKeyError, match="schema 'x' not found"):
                client.get_schema(fl.FlightDescriptor.for_path("x", "y"))
        metrics = httpx.get(f"{http}/metrics").text
        assert 'penstock_flight_calls_total{code="OK",method="DoGet"} 1.0' in metrics
        assert 'penstock_flight_calls_total{code="NOT_FOUND",method="GetSchema"} 1.0' in metrics
        assert "penstock_flight_rows_out_total 2.0" in metrics
        log = server.stop()
    (line,) = [line for line in log if line.get("request_id") == "mine"]
    assert (line["method"], line["code"], line["rows_out"]) == ("DoGet", "OK", 2)


def test_serve_with_keys_requires_tokens(tmp_path: Path) -> None:
    with served(tmp_path, "--dev", "--http-port", "0") as server:
        read_addresses(server)
        server.stop()
    with served(tmp_path, "--http-port", "0", PENSTOCK_JWT_SECRET=SECRET) as server:
        _, flight = read_addresses(server)
        with fl.connect(flight) as client:
            with pytest.raises(fl.FlightUnauthenticatedError, match="has no token"):
                list(client.list_flights())
            headers = [(b"authorization", f"Bearer {token()}".encode())]
            assert list(client.list_flights(options=fl.FlightCallOptions(headers=headers))) == []
        log = server.stop()
    assert token()[:40] not in json.dumps(log)


def test_serve_uses_one_certificate_for_rest_and_flight(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    with served(tmp_path, "--dev", "--http-port", "0", "--tls-cert", cert, "--tls-key", key) as server:
        http, flight = read_addresses(server)
        assert (http.split(":")[0], flight.split(":")[0]) == ("https", "grpc+tls")
        with fl.connect(flight, tls_root_certs=(tmp_path / cert).read_bytes()) as client:
            assert list(client.list_flights()) == []


def test_serve_finishes_active_call_before_exit(tmp_path: Path) -> None:
    with served(tmp_path, "--dev", "--http-port", "0") as server:
        http, flight = read_addresses(server)
        lines = b"id\n" + b"\n".join(b"%d" % n for n in range(1_000_000))
        response = httpx.post(f"{http}/datasets?name=shop.orders", content=lines, headers={"content-type": "text/csv"})
        assert response.status_code == 201
        channel = grpc.insecure_channel(flight.split("://")[1])
        stream = channel.unary_stream(f"/{SERVICE_NAME}/DoGet")(pb.Ticket(ticket=ORDERS.ticket).SerializeToString())
        sizes = [len(next(stream)), len(next(stream))]
        thread = threading.Thread(target=server.stop)
        thread.start()
        with pytest.raises(httpx.TransportError):  # the drain may also begin during a request
            while True:
                httpx.get(f"{http}/healthz")
        sizes += [len(message) for message in stream]
        channel.close()
        thread.join(60)
    assert sum(sizes) > 8_000_000


def test_serve_with_no_flight_serves_rest_alone(tmp_path: Path) -> None:
    with served(tmp_path, "--dev", "--http-port", "0", "--no-flight") as server:
        assert server.process.stdout is not None
        assert "Flight" not in server.process.stdout.readline()
        server.stop(signal.SIGINT)


def test_serve_with_used_port_fails_before_listening(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        with served(tmp_path, "--dev", "--http-port", "0", "--flight-port", port) as server:
            out, err = server.process.communicate(timeout=60)
    assert (server.process.returncode, out) == (1, "")
    assert f"Cannot listen for Flight on 127.0.0.1 port {port}" in err
    assert "Traceback" not in err
