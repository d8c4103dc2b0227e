"""The doctor compares the totals of a version with its files and deletion vectors."""

from sqlalchemy import bindparam, delete

from penstock.catalog.tables import deletion_vectors
from penstock.catalog.tenant_guard import tenant_filter
from penstock.core.dataset.edit_policy import EditMode, EditPolicy
from penstock.lake import Dataset
from penstock.service.doctor import CheckStatus, check_files


def test_check_files_reports_a_lost_deletion_vector(three_rows: Dataset) -> None:
    lake = three_rows._lake
    ws = lake._workspace
    ws.edit_policy = EditPolicy(EditMode.MARK)
    three_rows.delete([2])
    assert [result.state for result in check_files(ws, lake.caller)] == [CheckStatus.OK]
    of_dataset = deletion_vectors.c.dataset_id == bindparam("dataset")
    with ws.db.write(lake.caller) as tx:
        tx.execute(delete(deletion_vectors).where(tenant_filter(deletion_vectors), of_dataset), dataset=three_rows.id)
    (result,) = check_files(ws, lake.caller)
    assert result.state is CheckStatus.FAILED
    expected = (
        "version 2 has 3 rows instead of 2, 0 deleted rows instead of 1, 0 files with deletion vectors instead of 1"
    )
    assert result.found == expected
