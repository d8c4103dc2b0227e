"""The command `serve`."""

import json
from collections.abc import Callable
from dataclasses import astuple
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from penstock.cli.context import CliContext, Command, standard_options
from penstock.cli.options import PORT
from penstock.cli.output import print_json

if TYPE_CHECKING:
    from penstock.config import Settings
    from penstock.flight.service import FlightService
    from penstock.rest.context import RestContext
    from penstock.rest.metrics import Metrics
    from penstock.rest.process_group import ChildOptions
    from penstock.rest.server import Tls

_ARCHIVE_CHECK_SECONDS = 30.0  # between two checks for tenants whose schemas are due
_ARCHIVE_INTERVAL = timedelta(hours=1)
_MAX_FLIGHT_DRAIN_SECONDS = 10.0


@click.command(cls=Command)
@click.option(
    "--dev", is_flag=True, help="For one user on this machine: no tokens, loopback only; creates a missing workspace."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--http-port", type=PORT, default=8080, show_default=True, help="Port for HTTP; 0 means any free port.")
@click.option(
    "--flight-port", type=PORT, default=8815, show_default=True, help="Port for Arrow Flight; 0 means any free port."
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of server processes on the same ports; one for each core that requests may use.",
)
@click.option(
    "--page-port", type=PORT, help="Port of the web page with several processes.  [default: the HTTP port plus 1]"
)
@click.option("--child", hidden=True)
@click.option("--no-flight", is_flag=True, help="Do not serve Arrow Flight.")
@click.option("--no-ui", is_flag=True, help="Do not serve the web page.")
@click.option("--no-runs", is_flag=True, help="Do not execute pipeline runs; see `penstock worker`.")
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path),
    help="Certificate (PEM) for HTTP and Flight.  [default: PENSTOCK_TLS_CERT]",
)
@click.option(
    "--tls-key", type=click.Path(path_type=Path), help="Key (PEM) of the certificate.  [default: PENSTOCK_TLS_KEY]"
)
@standard_options(
    """
    penstock serve --dev --workspace lake
    PENSTOCK_JWT_SECRET=… penstock serve --host 0.0.0.0 --http-port 8443 --tls-cert cert.pem --tls-key key.pem
    PENSTOCK_JWT_SECRET=… penstock serve --host 0.0.0.0 --processes 4
    """
)
def serve(
    context: CliContext,
    dev: bool,
    host: str,
    http_port: int,
    flight_port: int,
    processes: int,
    page_port: int | None,
    child: str | None,
    no_flight: bool,
    no_ui: bool,
    no_runs: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> None:
    """Serve the workspace over HTTP and Arrow Flight until SIGTERM or Ctrl-C.

    /ui is the web page, /docs the documentation of the REST API. Callers send tokens (Authorization: Bearer …), which
    PENSTOCK_JWT_SECRET or PENSTOCK_JWKS_URL verifies. With --dev every process on this machine has admin access.
    """
    import logging

    _choose_arrow_allocator()
    from penstock import bootstrap, json_logs
    from penstock.errors import Invalid
    from penstock.rest.app import create_app
    from penstock.rest.context import HttpLimits, RestContext
    from penstock.rest.process_group import METRICS_ACTION, PageRedirect
    from penstock.rest.server import Server, Tls, resolves_to_loopback
    from penstock.rest.sibling_executions import execution_handlers
    from penstock.service import memory_release
    from penstock.service.auth.tokens import TokenVerifier
    from penstock.service.engine_choice import stop_spark
    from penstock.service.pipelines.run_worker import RunLimits, RunWorker

    if dev and not resolves_to_loopback(host):
        raise Invalid("dev_requires_loopback", {"host": host})
    settings = context.settings()
    tls_cert, tls_key = tls_cert or settings.tls_cert, tls_key or settings.tls_key
    if bool(tls_cert) != bool(tls_key):
        raise click.UsageError("--tls-cert and --tls-key must be set together (PENSTOCK_TLS_CERT, PENSTOCK_TLS_KEY).")
    keys = (settings.jwt_secret, settings.jwks_url)
    if not dev and not any(keys):
        raise Invalid("missing_token_key.serve")
    tokens = TokenVerifier(*keys, settings.jwt_issuer, settings.jwt_audience) if any(keys) else None
    if processes > 1 and child is None:
        with bootstrap.open_session(settings, create=dev):  # before the processes start: errors are reported once
            pass
        page_port = None if no_ui or _find_ui(dev=dev) is None else _page_port(page_port, http_port)
        flight_port = flight_port or (0 if no_flight else _free_port(host))
        code = _supervise(context, processes, host, http_port, flight_port, page_port, settings.http_drain_seconds)
        raise SystemExit(code)
    memory_release.limit_allocator_memory()
    part = _join_group(child) if child else None
    if part:
        settings = _share_of(settings, part.group.count)
        no_runs = no_runs or part.group.index > 0  # one Spark session is enough for a machine
    with bootstrap.open_session(settings, create=dev) as session:
        max_queued = settings.runs_waiting
        run_limits = RunLimits(settings.runs_at_once, max_queued, max_queued_per_tenant=max(1, max_queued // 4))
        run_worker = RunWorker(session.workspace, run_limits, takes_queued_runs=not no_runs)
        rest_context = RestContext.create(
            session.workspace,
            tokens,
            session.caller if dev else None,
            HttpLimits(
                max_json_bytes=settings.http_json_bytes,
                max_upload_bytes=settings.http_upload_bytes,
                response_timeout_seconds=settings.http_answer_seconds,
                drain_seconds=settings.http_drain_seconds,
            ),
            archive_after_days=settings.archive_after_days,
            tenants={session.caller.tenant},
            run_worker=run_worker,
            query_executor=session.query_executor,
            group=part.group if part else None,
        )
        mount_ui = None if no_ui or (part and not part.page_socket) else _find_ui(dev=dev)
        app = create_app(rest_context, mount_ui) if mount_ui else create_app(rest_context)
        tls = Tls(tls_cert, tls_key) if tls_cert and tls_key else None
        sockets = [listener for listener in (part.http_socket, part.page_socket) if listener] if part else []
        server = Server(
            app, host, http_port, rest_context.limits, tls, websockets=mount_ui is not None, sockets=sockets
        )
        if part:
            part.group.listen(
                {
                    METRICS_ACTION: lambda _: app.state.metrics.render(),
                    **execution_handlers(rest_context.query_executor.executions),
                }
            )
            if part.page_port:
                app.add_middleware(PageRedirect, port=part.page_port)
        json_logs.log_to()
        if not (no_ui or mount_ui or part):
            logging.getLogger("penstock").warning(
                "the web page is not installed; install it with pip install 'penstock[ui]'"
            )
        flight = (
            None
            if no_flight
            else _create_flight_service(
                rest_context, settings, app.state.metrics, host, flight_port, tls, shared_port=part is not None
            )
        )
        archived: dict[UUID, datetime] = {}
        server.add_periodic_job(memory_release.INTERVAL_SECONDS, memory_release.MemoryReleaser().run)
        server.add_periodic_job(_ARCHIVE_CHECK_SECONDS, lambda: _archive(rest_context, archived))
        try:
            if flight:
                flight.start()
                server.add_periodic_job(flight.EXPIRY_INTERVAL_SECONDS, flight.expire_transactions)
                server.on_shutdown(flight.drain)
            if not no_runs:
                run_worker.start()
            memory_release.exclude_startup_objects_from_collection()
            server.run(
                lambda address: _print_addresses(
                    context,
                    address,
                    mount_ui is not None,
                    flight.address if flight else None,
                    in_group=part is not None,
                )
            )
        finally:
            if flight:
                flight.stop()
            run_worker.close(server.remaining_drain_seconds())
            stop_spark()


def _choose_arrow_allocator() -> None:
    """Let Arrow use jemalloc, before it is imported: freed memory of all threads can be returned to the system.

    mimalloc, the default, returns the memory of the calling thread only.
    """
    import os
    import sys

    if sys.platform == "linux":
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")


def _supervise(
    context: CliContext,
    processes: int,
    host: str,
    http_port: int,
    flight_port: int,
    page_port: int | None,
    drain_seconds: float,
) -> int:
    """Run the server in several processes until SIGTERM or Ctrl-C, and return the exit code."""
    import sys

    from penstock import json_logs
    from penstock.cli.server_processes import Supervisor

    json_logs.log_to()
    arguments = [*_without_json(sys.argv[1:]), "--flight-port", str(flight_port)]  # the last of equal options counts
    supervisor = Supervisor(arguments, processes, host, http_port, page_port, drain_seconds)
    return supervisor.run(
        lambda addresses: _print_addresses(
            context, addresses["http"], page_port is not None, addresses["flight"], processes
        )
    )


def _without_json(arguments: list[str]) -> list[str]:
    return [argument for argument in arguments if argument != "--json"]


def _page_port(page_port: int | None, http_port: int) -> int:
    if page_port is not None:
        return page_port
    return http_port + 1 if http_port else 0


def _free_port(host: str) -> int:
    """Return a free port, which all processes then share."""
    from penstock.rest.server import listening_socket

    with listening_socket(host, 0) as listener:
        port: int = listener.getsockname()[1]
        return port


def _join_group(child: str) -> "ChildOptions":
    from penstock.cli.server_processes import stop_with_supervisor
    from penstock.rest.process_group import from_argument

    stop_with_supervisor()
    return from_argument(child)


def _share_of(settings: "Settings", processes: int) -> "Settings":
    """Divide the limits of the server among its processes."""
    from dataclasses import replace

    return replace(
        settings,
        request_memory=settings.request_memory // processes,
        query_cache_bytes=max(settings.query_cache_bytes // processes, 1),
        queries_at_once=max(settings.queries_at_once // processes, 1),
        flight_streams=max(settings.flight_streams // processes, 1),
        flight_puts=max(settings.flight_puts // processes, 1),
    )


def _find_ui(*, dev: bool) -> Callable[[Any], None] | None:
    """Return a function that mounts the web page, or None if it is not installed."""
    from importlib.util import find_spec

    if find_spec("nicegui") is None:
        return None
    from penstock.ui.mount import mount  # slow to import

    return lambda app: mount(app, dev=dev)


def _archive(rest_context: "RestContext", archived: "dict[UUID, datetime]") -> None:
    """Archive deprecated result schemas of the tenants that this process serves: at the first call of a tenant, then hourly."""
    import logging

    from penstock.errors import PenstockError
    from penstock.service.registry import schemas

    log = logging.getLogger("penstock")
    for tenant in sorted(
        rest_context.tenants - archived.keys()
        | {t for t, at in archived.items() if rest_context.clock() - at > _ARCHIVE_INTERVAL}
    ):
        archived[tenant] = rest_context.clock()
        try:
            result = schemas.archive_deprecated(
                rest_context.workspace, schemas.archive_caller(tenant), days=rest_context.archive_after_days
            )
        except PenstockError as error:
            log.warning("cannot archive schemas: %s", error, extra={"facts": {"tenant": str(tenant)}})
            continue
        if result.archived or result.referenced:
            facts = {"tenant": str(tenant), "archived": len(result.archived), "referenced": len(result.referenced)}
            log.info("schemas archived", extra={"facts": facts})


def _create_flight_service(
    rest_context: "RestContext",
    settings: "Settings",
    metrics: "Metrics",
    host: str,
    port: int,
    tls: "Tls | None",
    *,
    shared_port: bool = False,
) -> "FlightService":
    from penstock.flight.context import FlightContext, FlightLimits
    from penstock.flight.service import FlightService

    limits = FlightLimits(
        message_bytes=settings.flight_message_bytes,
        streams=settings.flight_streams,
        puts=settings.flight_puts,
        idle_seconds=settings.flight_idle_seconds,
        row_ids=settings.flight_row_ids,
        drain_seconds=min(settings.http_drain_seconds, _MAX_FLIGHT_DRAIN_SECONDS),
        shared_port=shared_port,
    )
    flight_context = FlightContext(
        rest_context.workspace,
        rest_context.tokens,
        rest_context.dev_caller,
        limits,
        rest_context.tenants,
        lambda stats: metrics.record_flight_call(*astuple(stats)),
    )
    return FlightService(
        flight_context,
        host,
        port,
        (tls.certificate, tls.key) if tls else None,
        time_to_live=timedelta(seconds=settings.transaction_ttl),
        auto_commit=settings.flight_auto_commit,
    )


def _print_addresses(
    context: CliContext,
    address: str,
    has_ui: bool,
    flight: str | None,
    processes: int = 1,
    *,
    in_group: bool = False,
) -> None:
    page = f"{address}/ui" if has_ui else None
    if in_group:  # one line for the supervisor
        click.echo(json.dumps({"http": address, "flight": flight}))
    elif context.json:
        print_json({"http": address, "docs": f"{address}/docs", "ui": page, "flight": flight})
    else:
        flight_note = f", and for Flight on {flight}" if flight else ""
        flight_note += f", with {processes} processes" if processes > 1 else ""
        click.echo(f"Penstock listens on {address}; see {page or f'{address}/docs'}{flight_note}")
