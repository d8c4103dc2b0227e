"""Commands for the workspace: init, migrate, doctor, sweep, token."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click

from penstock.cli.context import CliContext, Command, standard_options
from penstock.cli.output import align_table, print_json

if TYPE_CHECKING:
    from penstock.service.datasets.sweep import SweepReport


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--tenant", type=click.UUID, help="Tenant of the local command line and Python API.  [default: a new id]")
@click.option("--store", help="Bucket for the data files: s3://bucket/prefix.  [default: PENSTOCK_STORE, else FOLDER]")
@standard_options(
    """
    penstock init lake
    penstock init lake --store s3://bucket/lake
    penstock init lake --tenant 7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d
    """
)
def init(context: CliContext, folder: Path | None, tenant: UUID | None, store: str | None) -> None:
    """Create a workspace in FOLDER, with a catalog in SQLite or in PENSTOCK_DATABASE_URL.

    With --store the data files are in a bucket, and FOLDER holds the local copies of them. Credentials come from
    PENSTOCK_STORE_OPTIONS or from the environment. Another machine joins the workspace with the same --store and the
    same PENSTOCK_DATABASE_URL.
    """
    from penstock import bootstrap, config, lake
    from penstock.errors import AlreadyExists

    settings = config.load_settings(workspace=folder or context.workspace, store=store)
    created = bootstrap.create_workspace(settings, tenant)
    path = created.folder
    if tenant not in (None, created.tenant):
        raise AlreadyExists("workspace_of_other_tenant", {"folder": path, "tenant": created.tenant})
    lake.open(settings=settings, create=True).close()
    facts = {"workspace": str(path), "tenant": str(created.tenant)}
    facts |= {"store": created.store} if created.store else {}
    context.report(
        facts, f"{path} is a workspace of tenant {created.tenant}. Use it with: export PENSTOCK_WORKSPACE={path}"
    )


@click.command(cls=Command)
@standard_options(
    """
    penstock migrate
    PENSTOCK_ADMIN_DATABASE_URL=postgresql://owner@db/penstock penstock migrate
    """
)
def migrate(context: CliContext) -> None:
    """Upgrade the tables of the catalog. On PostgreSQL, also create the role penstock_app, which owns no tables.

    Connects with PENSTOCK_ADMIN_DATABASE_URL, the tables' owner, if it is set. The service itself needs only a login
    that is a member of the role penstock_app.
    """
    from penstock import bootstrap

    before, after = bootstrap.migrate_catalog(context.settings())
    context.report(
        {"before": before, "after": after},
        f"The catalog is up to date (revision {after})"
        if before == after
        else f"The catalog was upgraded to revision {after}",
    )


@click.command(cls=Command)
@click.option("--verify", is_flag=True, help="Also read every current data file and verify its checksum.")
@standard_options(
    """
    penstock doctor
    penstock doctor --verify
    """
)
def doctor(context: CliContext, verify: bool) -> None:
    """Check Python, Java, packages, settings, workspace, disk and catalog, and print how to fix each problem."""
    from penstock import bootstrap, config
    from penstock.core.caller import local_caller
    from penstock.errors import PenstockError
    from penstock.service import doctor as service_doctor
    from penstock.service.doctor import CheckResult, CheckStatus
    from penstock.workspace_folder import load_workspace_folder

    settings = context.settings()
    checks = [*service_doctor.check_machine(), *service_doctor.check_variables(config.find_unknown_variables())]
    try:
        folder = load_workspace_folder(settings.workspace)
    except PenstockError as error:
        checks.append(CheckResult("workspace", CheckStatus.WARNING, error.message, "penstock init"))
    else:
        workspace = bootstrap.build_workspace(settings, folder)
        checks += [*service_doctor.check_folder(folder.folder), *service_doctor.check_store(workspace.store)]
        checks += service_doctor.check_database(workspace.db)
        if verify and all(check.state is not CheckStatus.FAILED for check in checks):
            with context.progress("reading") as line:
                caller = local_caller(folder.tenant, "doctor")
                checks += service_doctor.check_files(workspace, caller, line.on_progress)
        workspace.close()
    if context.json:
        print_json([check.as_dict() for check in checks])
    else:
        labels = {CheckStatus.OK: "ok", CheckStatus.WARNING: "WARNING", CheckStatus.FAILED: "FAILED"}
        rows = [[check.part, labels[check.state], check.found] for check in checks]
        click.echo(align_table(rows, ["part", "state", "found"]))
        for check in checks:
            if check.fix:
                click.echo(f"\n{check.part}: {check.fix}")
    if any(check.state is CheckStatus.FAILED for check in checks):
        raise SystemExit(1)


@click.command(cls=Command)
@click.option("--keep-days", type=click.FloatRange(min=0), help="Keep versions that were current in the last N days.")
@click.option("--keep-versions", type=click.IntRange(min=1), help="Keep the last N versions of each dataset.")
@click.option("--tenant", type=click.UUID, help="Sweep this tenant.  [default: the workspace's own]")
@click.option("--yes", is_flag=True, help="Remove the files. Without it, only print what would be removed.")
@standard_options(
    """
    penstock sweep --keep-days 30
    penstock sweep --keep-days 30 --yes
    penstock sweep --keep-days 30 --tenant 7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d --yes
    """
)
def sweep(
    context: CliContext, keep_days: float | None, keep_versions: int | None, tenant: UUID | None, yes: bool
) -> None:
    """Remove files of expired versions and of dead writers.

    Without --yes, prints what would be removed. Every version is kept unless --keep-days or --keep-versions is set
    (with both, a version is kept that either of them keeps). The current version is always kept, and so is every
    version that was current within the last hour. Files of a dataset that was dropped more than --keep-days ago are
    removed.
    """
    from penstock.service.datasets.sweep import RetentionPolicy, sweep_tenant

    with context.session() as session, context.progress("sweeping") as line:
        policy = RetentionPolicy(days=keep_days, versions=keep_versions)
        report = sweep_tenant(
            session.workspace,
            session.caller,
            tenant or session.caller.tenant,
            policy,
            execute=yes,
            progress=line.on_progress,
        )
    context.report(report.as_dict(), _describe_sweep(report, removed=yes))


def _describe_sweep(report: "SweepReport", *, removed: bool) -> str:
    from penstock.core.formatting import format_bytes, format_count

    files = f"{format_count(report.files, 'file')} ({format_bytes(report.bytes)})"
    lines = [f"{'removed' if removed else 'would remove'} {files} of {format_count(report.versions, 'version')}"]
    lines += [f"  {name}: {count:,}" for name, count in sorted(report.datasets.items())]
    lines += [f"  of dead writers: {report.orphans:,}"] if report.orphans else []
    lines += [f"  of another catalog, kept: {report.unknown:,}"] if report.unknown else []
    lines += ["Nothing was removed. Pass --yes to remove the files"] if report.files and not removed else []
    return "\n".join(lines)


@click.command(cls=Command)
@click.option("--user", required=True, help="User of the token (its sub).")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    help="Role of the user: analytics.viewer, analytics.developer or analytics.admin.",
)
@click.option("--tenant", type=click.UUID, help="Tenant of the token.  [default: the workspace's own]")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    default=8,
    show_default=True,
    help="Hours until the token expires.",
)
@standard_options("PENSTOCK_JWT_SECRET=… penstock token --user ada --role analytics.developer --hours 1")
def token(context: CliContext, user: str, roles: tuple[str, ...], tenant: UUID | None, hours: float) -> None:
    """Create a token (JWT, HS256) signed with PENSTOCK_JWT_SECRET."""
    from penstock.errors import Invalid
    from penstock.service.auth import tokens
    from penstock.workspace_folder import load_workspace_folder

    settings = context.settings()
    if not settings.jwt_secret:
        raise Invalid("missing_jwt_secret")
    minted = tokens.mint(
        settings.jwt_secret,
        tenant=tenant or load_workspace_folder(settings.workspace).tenant,
        user=user,
        roles=roles,
        ttl=timedelta(hours=hours),
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
    )
    if context.json:
        print_json({"token": minted})
    else:
        click.echo(minted)
