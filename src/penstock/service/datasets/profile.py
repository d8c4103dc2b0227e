"""What the columns of a version are like: by what the catalog knows, and for one of them by its values."""

from dataclasses import replace

from penstock.catalog import snapshots as history
from penstock.core.dataset import profile as profiles
from penstock.core.caller import Caller, Role
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.dataset.profile import Profile
from penstock.errors import Invalid
from penstock.service.workspace import Workspace
from penstock.storage.scan import Most, sample


def profile(
    ws: Workspace, caller: Caller, snapshot: Snapshot, column: str | None = None, *, most: Most | None = None
) -> Profile:
    """All columns; of the one that is asked for also how its values are spread, or those of a sample."""
    caller.require(Role.VIEWER)
    if column is not None and column not in snapshot.schema.names:
        raise Invalid(
            "no_such_column",
            f"there is no column {column!r}; {snapshot.name} has {', '.join(snapshot.schema.names)}",
            column=column,
        )
    with ws.db.read(caller) as tx:
        files = history.files(tx, snapshot, stats=True)
    found = Profile(profiles.known(snapshot.schema, files))
    if column is None:
        return found
    field = snapshot.schema.field(column)
    profiles.check_spread(field)
    values = sample(ws.store, files, field, most or Most())
    sampled = len(values) < snapshot.version.rows
    if not sampled:  # then nothing of it is unknown
        exact = profiles.column(field, values)
        found = Profile(tuple(exact if each.field == field else each for each in found.columns))
    return replace(found, histogram=profiles.histogram(field, values, sampled=sampled))
