"""Profile the columns of a snapshot from the catalog's statistics, and one column from its values."""

from dataclasses import replace

from penstock.catalog import snapshots
from penstock.core.caller import Caller, Role
from penstock.core.dataset import profile as dataset_profile
from penstock.core.dataset.profile import DatasetProfile
from penstock.core.dataset.snapshot import Snapshot
from penstock.errors import Invalid
from penstock.service.workspace import Workspace
from penstock.storage.scan import SampleLimits, sample


def profile(
    ws: Workspace, caller: Caller, snapshot: Snapshot, column: str | None = None, *, limits: SampleLimits | None = None
) -> DatasetProfile:
    """Profile all columns of a snapshot, with a histogram of one column.

    Args:
        ws: the workspace
        caller: needs the role viewer
        snapshot: the dataset at one version
        column: the column to draw a histogram of; None: no histogram
        limits: bounds the sample of values that the histogram is computed from
    """
    caller.require(Role.VIEWER)
    if column is not None and column not in snapshot.schema.names:
        raise Invalid(
            "column_not_found.profile",
            {"dataset": snapshot.name, "names": snapshot.schema.names},
            column=column,
        )
    with ws.db.read(caller) as tx:
        files = snapshots.files(tx, snapshot, stats=True)
    result = DatasetProfile(dataset_profile.profile_from_stats(snapshot.schema, files))
    if column is None:
        return result
    field = snapshot.schema.field(column)
    dataset_profile.check_histogram_type(field)
    values = sample(ws.store_of(caller), files, field, limits or SampleLimits())
    sampled = len(values) < snapshot.version.rows
    if not sampled:  # all values were read, so that the profile of the column is exact
        exact = dataset_profile.profile_column(field, values)
        result = DatasetProfile(tuple(exact if one.field == field else one for one in result.columns))
    return replace(result, histogram=dataset_profile.compute_histogram(field, values, sampled=sampled))
