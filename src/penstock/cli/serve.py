"""The command `serve`."""

from collections.abc import Callable
from dataclasses import astuple
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from penstock.cli.context import Command, Frame, shared

if TYPE_CHECKING:
    from penstock.config import Settings
    from penstock.flight.service import FlightService
    from penstock.rest.context import Edge
    from penstock.rest.metrics import Metrics
    from penstock.rest.server import Tls

_LOOK = 30.0  # seconds between two looks for tenants whose turn it is
_EVERY = timedelta(hours=1)
_LONGEST_DRAIN = 10.0  # seconds, of calls over Flight
PORT = click.IntRange(0, 65_535)


@click.command(cls=Command)
@click.option("--dev", is_flag=True, help="For one person on this machine: no tokens, loopback only, made if missing.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--http-port", type=PORT, default=8080, show_default=True, help="The port for HTTP; 0 takes a free one.")
@click.option(
    "--flight-port", type=PORT, default=8815, show_default=True, help="The port for Arrow Flight; 0 takes a free one."
)
@click.option("--no-flight", is_flag=True, help="Serve HTTP alone.")
@click.option("--no-ui", is_flag=True, help="Serve no web page.")
@click.option("--no-runs", is_flag=True, help="Leave the runs of pipelines to others: see `penstock worker`.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="The certificate (PEM) that makes both TLS.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="The certificate's key (PEM).")
@shared(
    """
    penstock serve --dev --workspace lake
    PENSTOCK_JWT_SECRET=… penstock serve --host 0.0.0.0 --http-port 8443 --tls-cert cert.pem --tls-key key.pem
    """
)
def serve(
    frame: Frame,
    dev: bool,
    host: str,
    http_port: int,
    flight_port: int,
    no_flight: bool,
    no_ui: bool,
    no_runs: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> None:
    """Serve the workspace over HTTP and Arrow Flight until SIGTERM or Ctrl-C; /ui is for people, /docs for programs.

    Callers send tokens (authorization: Bearer …), checked against PENSTOCK_JWT_SECRET or PENSTOCK_JWKS_URL. With --dev
    none is needed, and whoever can reach the loopback is an admin.
    """
    import logging

    from penstock import lake
    from penstock.errors import Invalid
    from penstock import json_logs as logs
    from penstock.rest.app import application
    from penstock.rest.context import Edge, HttpLimits
    from penstock.rest.server import Server, Tls
    from penstock.service.engine_choice import stop_spark
    from penstock.service.pipelines.run_worker import Bounds, Runner
    from penstock.service.auth.tokens import Tokens

    if dev and not _is_loopback(host):
        raise Invalid("dev_is_local", f"--dev asks for no tokens, so it listens on the loopback only, not on {host}")
    settings = frame.settings()
    tls_cert, tls_key = tls_cert or settings.tls_cert, tls_key or settings.tls_key
    if bool(tls_cert) != bool(tls_key):
        raise click.UsageError("--tls-cert and --tls-key go together (PENSTOCK_TLS_CERT, PENSTOCK_TLS_KEY)")
    keys = (settings.jwt_secret, settings.jwks_url)
    if not dev and not any(keys):
        raise Invalid(
            "no_token_key",
            "set PENSTOCK_JWT_SECRET (32 bytes or more) or PENSTOCK_JWKS_URL, so that tokens can be checked; "
            "or play alone with --dev",
        )
    tokens = Tokens(*keys, settings.jwt_issuer, settings.jwt_audience) if any(keys) else None
    with lake.open(settings=settings, create=dev) as opened:
        waiting = settings.runs_waiting
        bounds = Bounds(settings.runs_at_once, waiting, of_one=max(1, waiting // 4))
        runner = Runner(opened.workspace, bounds, takes=not no_runs)
        edge = Edge(
            opened.workspace,
            tokens,
            opened.caller if dev else None,
            HttpLimits(
                json_bytes=settings.http_json_bytes,
                upload_bytes=settings.http_upload_bytes,
                answer_seconds=settings.http_answer_seconds,
                drain_seconds=settings.http_drain_seconds,
            ),
            archive_after_days=settings.archive_after_days,
            tenants={opened.caller.tenant},
            runner=runner,
            results=opened.results,
        )
        pages = None if no_ui else _pages(dev=dev)
        app = application(edge, pages) if pages else application(edge)
        tls = Tls(tls_cert, tls_key) if tls_cert and tls_key else None
        server = Server(app, host, http_port, edge.limits, tls, sockets=pages is not None)
        logs.to()
        if not (no_ui or pages):
            logging.getLogger("penstock").warning("there is no web page; pip install 'penstock[ui]' brings it")
        flight = None if no_flight else _flight(edge, settings, app.state.metrics, host, flight_port, tls)
        archived: dict[UUID, datetime] = {}
        server.every(_LOOK, lambda: _archive(edge, archived))
        try:
            if flight:
                flight.start()
                server.every(flight.TENDED, flight.tend)
                server.when_stopping(flight.drain)
            if not no_runs:
                runner.start()
            server.run(lambda address: _tell(frame, address, pages is not None, flight.address if flight else None))
        finally:
            if flight:
                flight.stop()
            runner.close(server.patience())
            stop_spark()


def _pages(*, dev: bool) -> Callable[[Any], None] | None:
    """What serves the pages. None: they were not installed."""
    from importlib.util import find_spec

    if find_spec("nicegui") is None:
        return None
    from penstock.ui.mount import mount  # which takes a while to load

    return lambda app: mount(app, dev=dev)


def _archive(edge: "Edge", archived: "dict[UUID, datetime]") -> None:
    """Archive what was deprecated long ago, for tenants that this process serves: when it first hears of one, and hourly."""
    import logging

    from penstock.errors import PenstockError
    from penstock.service.registry import schemas

    log = logging.getLogger("penstock")
    for tenant in sorted(
        edge.tenants - archived.keys() | {t for t, at in archived.items() if edge.clock() - at > _EVERY}
    ):
        archived[tenant] = edge.clock()
        try:
            done = schemas.archive(edge.workspace, schemas.archiver(tenant), days=edge.archive_after_days)
        except PenstockError as trouble:
            log.warning("schemas could not be archived: %s", trouble, extra={"facts": {"tenant": str(tenant)}})
            continue
        if done.archived or done.referenced:
            facts = {"tenant": str(tenant), "archived": len(done.archived), "referenced": len(done.referenced)}
            log.info("schemas were archived", extra={"facts": facts})


def _flight(
    edge: "Edge", settings: "Settings", metrics: "Metrics", host: str, port: int, tls: "Tls | None"
) -> "FlightService":
    from penstock.flight.context import Edge as FlightEdge
    from penstock.flight.context import FlightLimits
    from penstock.flight.service import FlightService

    limits = FlightLimits(
        message_bytes=settings.flight_message_bytes,
        streams=settings.flight_streams,
        row_ids=settings.flight_row_ids,
        drain_seconds=min(settings.http_drain_seconds, _LONGEST_DRAIN),
    )
    own = FlightEdge(
        edge.workspace, edge.tokens, edge.dev, limits, edge.tenants, lambda ended: metrics.called(*astuple(ended))
    )
    return FlightService(
        own,
        host,
        port,
        (tls.certificate, tls.key) if tls else None,
        time_to_live=timedelta(seconds=settings.transaction_ttl),
        auto_commit=settings.flight_auto_commit,
    )


def _tell(frame: Frame, address: str, has_ui: bool, flight: str | None) -> None:
    page = f"{address}/ui" if has_ui else None
    if frame.json:
        frame.print_json({"http": address, "docs": f"{address}/docs", "ui": page, "flight": flight})
    else:
        beside = f", and for Flight on {flight}" if flight else ""
        click.echo(f"Penstock listens on {address}; see {page or f'{address}/docs'}{beside}")


def _is_loopback(host: str) -> bool:
    """Does every address of the name belong to this machine alone?"""
    import socket
    from ipaddress import ip_address

    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(ip_address(each).is_loopback for each in found)
