"""Answers share memory; those for which there is none left wait in files, and rows are the same."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.service.queries.result_buffer import Room

TABLE = pa.table({"n": pa.array(range(10_000), pa.int64())})
SIZE = TABLE.nbytes


def held(room: Room, table: pa.Table = TABLE) -> pa.Table:
    return room.hold(table.schema, table.to_batches(max_chunksize=1_000))


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("penstock-result-")


def test_room_is_given_back_when_the_last_one_has_read() -> None:
    room = Room(SIZE * 25)
    first, before = held(room), room.left
    assert first == TABLE
    assert before < SIZE * 25
    reader = first.to_reader()
    second = held(room)
    del second
    gc.collect()
    assert room.left == before
    del first, reader
    gc.collect()
    assert room.left == SIZE * 25


def test_what_has_no_room_waits_in_a_file_that_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for room in (Room(SIZE // 2), Room(SIZE * 25, one_bytes=SIZE // 2)):
        before, left = mapped(), room.left
        table = held(room)
        assert table == TABLE
        assert mapped() > before
        assert room.left == left
        assert os.listdir(tmp_path) == []
        del table
        gc.collect()
        assert mapped() == before


def test_rows_that_break_off_give_back_their_room() -> None:
    def breaking() -> Iterator[pa.RecordBatch]:
        yield from TABLE.to_batches(max_chunksize=1_000)[:3]
        raise ValueError("broken")

    room = Room(SIZE * 25)
    with pytest.raises(ValueError, match="broken"):
        room.hold(TABLE.schema, breaking())
    assert room.left == SIZE * 25


def test_nothing_and_rows_without_columns_are_held() -> None:
    room = Room(0)
    assert held(room, TABLE.slice(0, 0)) == TABLE.slice(0, 0)
    assert room.hold(pa.schema([]), [TABLE.to_batches()[0].select([])]).num_rows == 10_000
