"""Commands for the workspace as a whole: init, migrate, doctor, sweep, token."""

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import click

from penstock.cli.context import Command, Frame, aligned, shared


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--tenant", type=click.UUID, help="The tenant that the workspace's own command line works for.")
@shared("penstock init lake")
def init(frame: Frame, folder: Path | None, tenant: UUID | None) -> None:
    """Make a folder a workspace: its files, and a catalog (SQLite, or PENSTOCK_DATABASE_URL)."""
    from penstock import config, lake
    from penstock.errors import AlreadyExists

    settings = config.settings(workspace=folder or frame.workspace)
    home = config.make_home(settings.workspace, tenant)
    if tenant not in (None, home.tenant):
        raise AlreadyExists("other_tenant", f"{home.folder} is a workspace of tenant {home.tenant} already")
    lake.open(settings=settings, create=True).close()
    facts = {"workspace": str(home.folder), "tenant": str(home.tenant)}
    frame.tell(facts, f"{home.folder} is a workspace (tenant {home.tenant}); export PENSTOCK_WORKSPACE={home.folder}")


@click.command(cls=Command)
@shared("PENSTOCK_ADMIN_DATABASE_URL=postgresql://owner@db/penstock penstock migrate")
def migrate(frame: Frame) -> None:
    """Bring the catalog's tables up to date. On PostgreSQL, also make the role that owns nothing.

    Uses PENSTOCK_ADMIN_DATABASE_URL where it is set: the tables' owner. The service itself needs only a login that is
    a member of the role penstock_app.
    """
    from penstock import config
    from penstock.catalog import migrate as upgrade
    from penstock.catalog.database import Database

    settings = frame.settings()
    url = settings.admin_database_url or settings.database_url
    db = Database(url or config.home(settings.workspace).catalog)
    try:
        before, after = upgrade.migrate(db)
    finally:
        db.close()
    frame.tell(
        {"before": before, "after": after},
        f"the catalog was up to date (revision {after})"
        if before == after
        else f"the catalog is at revision {after} now",
    )


@click.command(cls=Command)
@click.option("--verify", is_flag=True, help="Also read every current data file and compare its checksum.")
@shared("penstock doctor --verify")
def doctor(frame: Frame, verify: bool) -> None:
    """Look at Python, Java, database, disk and versions: what is missing, and what mends it."""
    from penstock import config, lake
    from penstock.core.caller import local
    from penstock.errors import PenstockError
    from penstock.service import doctor as doctors

    settings = frame.settings()
    findings = [*doctors.machine(), *doctors.variables(config.unknown_variables())]
    try:
        home = config.home(settings.workspace)
    except PenstockError as error:
        findings.append(doctors.Finding("workspace", doctors.State.WARNING, error.message, "penstock init"))
    else:
        ws = lake.workspace(settings, home)
        findings += [*doctors.folder(home.folder), *doctors.database(ws.db)]
        if verify and all(finding.state is not doctors.State.FAILED for finding in findings):
            with frame.progress("reading", unit="bytes") as progress:
                findings += doctors.files(ws, local(home.tenant, "doctor"), progress)
        ws.close()
    if frame.json:
        frame.print_json([finding.facts() for finding in findings])
    else:
        marks = {doctors.State.OK: "ok", doctors.State.WARNING: "WARNING", doctors.State.FAILED: "FAILED"}
        click.echo(aligned([[f.part, marks[f.state], f.found] for f in findings], ["part", "state", "found"]))
        for finding in findings:
            if finding.mend:
                click.echo(f"\n{finding.part}: {finding.mend}")
    if any(finding.state is doctors.State.FAILED for finding in findings):
        raise SystemExit(1)


@click.command(cls=Command)
@click.option(
    "--keep-days", type=click.FloatRange(min=0), help="Keep versions that were the newest in the last so many days."
)
@click.option("--keep-versions", type=click.IntRange(min=1), help="Keep the last so many versions of each dataset.")
@click.option("--yes", is_flag=True, help="Remove. Without it nothing is touched.")
@shared(
    """
    penstock sweep --keep-days 30
    penstock sweep --keep-days 30 --yes
    """
)
def sweep(frame: Frame, keep_days: float | None, keep_versions: int | None, yes: bool) -> None:
    """Remove files that no retained version needs, and what dead writers left behind.

    Says only what it would remove, unless --yes. Every version is kept unless --keep-days or --keep-versions say
    otherwise (with both: what either keeps); the newest always is, and whatever was the newest within the last hour.
    Files of dropped datasets go when they were dropped more than --keep-days ago.
    """
    from penstock.lake import counted, human_size
    from penstock.service.datasets.sweep import Keep
    from penstock.service.datasets.sweep import sweep as sweeping

    with frame.lake() as lake, frame.progress("sweeping", unit="files") as progress:
        keep = Keep(days=keep_days, versions=keep_versions)
        swept = sweeping(lake.workspace, lake.caller, keep, really=yes, progress=progress)
    verb = "removed" if yes else "would remove"
    lines = [
        f"{verb} {counted(swept.files, 'file')} ({human_size(swept.bytes)}) of {counted(swept.versions, 'version')}"
    ]
    lines += [f"  {name}: {count:,}" for name, count in sorted(swept.datasets.items())]
    lines += [f"  left behind by writers that died: {swept.orphans:,}"] if swept.orphans else []
    lines += [f"  files of another catalog, left alone: {swept.unknown:,}"] if swept.unknown else []
    lines += ["nothing was touched; --yes removes them"] if swept.files and not yes else []
    frame.tell(swept.facts(), "\n".join(lines))


@click.command(cls=Command)
@click.option("--user", required=True, help="Who the token speaks for (its sub).")
@click.option(
    "--role", "roles", multiple=True, required=True, help="analytics.viewer, analytics.developer or analytics.admin."
)
@click.option("--tenant", type=click.UUID, help="The tenant; the workspace's own unless given.")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    default=8,
    show_default=True,
    help="How long it is good for.",
)
@shared("PENSTOCK_JWT_SECRET=… penstock token --user ada --role analytics.developer --hours 1")
def token(frame: Frame, user: str, roles: tuple[str, ...], tenant: UUID | None, hours: float) -> None:
    """Mint a token (JWT, HS256), signed with PENSTOCK_JWT_SECRET."""
    from penstock import config
    from penstock.errors import Invalid
    from penstock.service.auth import tokens

    settings = frame.settings()
    if not settings.jwt_secret:
        raise Invalid("no_secret", "set PENSTOCK_JWT_SECRET to the service's secret (32 bytes or more) first")
    minted = tokens.mint(
        settings.jwt_secret,
        tenant=tenant or config.home(settings.workspace).tenant,
        user=user,
        roles=roles,
        ttl=timedelta(hours=hours),
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
    )
    if frame.json:
        frame.print_json({"token": minted})
    else:
        click.echo(minted)
