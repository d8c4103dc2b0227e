"""Deletion vectors behave like sets of positions; the policy decides between marking and rewriting."""

import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.dataset.deletion_vector import DeletionVector, remaining
from penstock.core.dataset.edit_policy import EditMode, EditPolicy, vector_bytes


def vector(*positions: int) -> DeletionVector:
    return DeletionVector.from_positions(positions)


def test_vector_of_no_positions_is_empty() -> None:
    assert len(vector()) == 0
    assert vector().positions.tolist() == []
    assert vector().mask(0, 3) is None
    assert DeletionVector.union([]) is None


def test_serialized_vector_is_a_portable_64_bit_roaring_bitmap() -> None:
    """One 32-bit bitmap with the high bits 0; one array container with two positions."""
    expected = "0100000000000000 00000000 3a300000 01000000 0000 0100 10000000 0100 0500"
    assert vector(1, 5).to_bytes() == bytes.fromhex(expected)


def test_mask_covers_the_rows_of_a_batch_only() -> None:
    deleted = vector(0, 3, 9)
    assert deleted.mask(0, 3).to_pylist() == [False, True, True]
    assert deleted.mask(3, 2).to_pylist() == [False, True]
    assert deleted.mask(4, 5) is None
    batch = pa.record_batch({"n": [3, 4, 5]})
    assert remaining(batch, 3, deleted).column("n").to_pylist() == [4, 5]
    assert remaining(batch, 4, deleted) is batch
    assert remaining(batch, 0, None) is batch


@pytest.mark.parametrize("seed", [1, 2, 3, None])
def test_random_vectors_behave_like_sets(seed: int | None) -> None:
    seed = random.randrange(2**32) if seed is None else seed
    rng = random.Random(seed)
    top = rng.choice([10, 1000, 200_000])
    set_1, set_2 = ({rng.randrange(top) for _ in range(rng.randrange(1, 300))} for _ in range(2))
    vector_1, vector_2 = vector(*set_1), vector(*sorted(set_2))
    probes = np.array(sorted({rng.randrange(top) for _ in range(50)}))
    message = f"seed {seed}"
    assert vector_1.positions.tolist() == sorted(set_1), message
    assert (vector_1 | vector_2) == vector(*(set_1 | set_2)), message
    assert (vector_1 & vector_2).positions.tolist() == sorted(set_1 & set_2), message
    assert vector_1.is_disjoint(vector_2) == set_1.isdisjoint(set_2), message
    assert vector_1.contains(probes).tolist() == [probe in set_1 for probe in probes.tolist()], message
    assert DeletionVector.from_bytes(vector_1.to_bytes()) == vector_1, message
    assert len(vector_1.to_bytes()) <= vector_bytes(top, len(set_1)) + 64, message


@pytest.mark.parametrize(
    ("rows", "deleted", "touched", "marks"),
    [
        (1000, 0, 1, True),
        (1000, 0, 200, True),
        (1000, 0, 201, False),
        (1000, 200, 1, False),
        (1000, 199, 1, True),
        (4, 0, 1, False),
        (100_000_000, 0, 100_000, True),
        (100_000_000, 0, 200_000, False),  # the vector would be too large
        (100_000_000, 90_000, 100_000, False),
    ],
)
def test_policy_marks_while_the_vector_is_small(rows: int, deleted: int, touched: int, marks: bool) -> None:
    assert EditPolicy().marks(rows, deleted, touched) is marks
    assert EditPolicy(EditMode.MARK).marks(rows, deleted, touched) is True
    assert EditPolicy(EditMode.REWRITE).marks(rows, deleted, touched) is False


def test_vector_after_reads_keeps_only_its_bitmap_in_memory() -> None:
    """The file list of a scan holds the vectors of all files. Their positions would take 24 times as much memory here."""
    deleted = vector(*range(0, 2_000_000, 5))
    tracemalloc.start()
    try:
        deleted.mask(0, 131_072)
        deleted.contains(np.arange(100))
        assert len(deleted.positions) == 400_000
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < len(deleted.to_bytes())


@pytest.mark.parametrize(
    ("rows", "deleted", "touched", "by_id", "in_transaction"),
    [
        (4, 0, 1, True, True),
        (4096, 4000, 90, True, True),
        (4097, 0, 900, False, True),
        (100_000, 0, 90_000, False, True),
        (10_000_000, 0, 200_000, False, False),  # the vector would be too large
    ],
)
def test_policy_for_edits_by_id_marks_any_share_of_small_files_and_in_transactions(
    rows: int, deleted: int, touched: int, by_id: bool, in_transaction: bool
) -> None:
    assert EditPolicy().for_row_edits().marks(rows, deleted, touched) is by_id
    assert EditPolicy().for_transactions().marks(rows, deleted, touched) is in_transaction
    for mode in (EditMode.MARK, EditMode.REWRITE):
        for policy in (EditPolicy(mode).for_row_edits(), EditPolicy(mode).for_transactions()):
            assert policy.marks(rows, deleted, touched) is (mode is EditMode.MARK)
