"""The command `serve`."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click

from penstock.cli.frame import Command, Frame, shared

if TYPE_CHECKING:
    from penstock.http.edge import Edge

_LOOK = 30.0  # seconds between two looks for tenants whose turn it is
_EVERY = timedelta(hours=1)
PORT = click.IntRange(0, 65_535)


@click.command(cls=Command)
@click.option("--dev", is_flag=True, help="For one person on this machine: no tokens, loopback only, made if missing.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--http-port", type=PORT, default=8080, show_default=True, help="The port for HTTP; 0 takes a free one.")
@click.option("--flight-port", type=PORT, help="The port for Arrow Flight, which a later release serves.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="The certificate (PEM) that makes it HTTPS.")
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
    flight_port: int | None,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> None:
    """Serve the workspace over HTTP until SIGTERM or Ctrl-C; /docs shows what there is.

    Callers send tokens (authorization: Bearer …), checked against PENSTOCK_JWT_SECRET or PENSTOCK_JWKS_URL. With --dev
    none is needed, and whoever can reach the loopback is an admin.
    """
    import logging

    from penstock import lake
    from penstock.errors import Invalid
    from penstock.http import logs
    from penstock.http.app import application
    from penstock.http.edge import Edge, HttpLimits
    from penstock.http.server import Server, Tls
    from penstock.service.engines import stop_spark
    from penstock.service.runs import Bounds, Runner
    from penstock.service.tokens import Tokens

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
        runner = Runner(opened.workspace, Bounds(settings.runs_at_once, waiting, of_one=max(1, waiting // 4)))
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
        server = Server(
            application(edge), host, http_port, edge.limits, Tls(tls_cert, tls_key) if tls_cert and tls_key else None
        )
        logs.to()
        if flight_port is not None:
            logging.getLogger("penstock").info(
                "Arrow Flight comes with a later release; --flight-port does nothing yet"
            )
        archived: dict[UUID, datetime] = {}
        server.every(_LOOK, lambda: _archive(edge, archived))
        try:
            server.run(lambda address: _tell(frame, address))
        finally:
            runner.close(server.patience())
            stop_spark()


def _archive(edge: "Edge", archived: "dict[UUID, datetime]") -> None:
    """Archive what was deprecated long ago, for tenants that this process serves: when it first hears of one, and hourly."""
    import logging

    from penstock.errors import PenstockError
    from penstock.service import schemas

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


def _tell(frame: Frame, address: str) -> None:
    if frame.json:
        frame.print_json({"http": address, "docs": f"{address}/docs"})
    else:
        click.echo(f"Penstock listens on {address}; see {address}/docs")


def _is_loopback(host: str) -> bool:
    """Does every address of the name belong to this machine alone?"""
    import socket
    from ipaddress import ip_address

    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(ip_address(each).is_loopback for each in found)
