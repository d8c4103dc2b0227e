"""Import files: accepted formats, and errors that change nothing."""

import gzip
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import PenstockError
from penstock.lake import Lake
from penstock.storage import arrow_ipc
from penstock.storage.import_files import BLOCK_BYTES
from support.cli_runner import CliRunner

TABLE = pa.table({"id": range(1, 201), "word": [f"word {i}" for i in range(200)]})


def import_error(cli: CliRunner, file: object, *words: object, name: str = "shop.orders") -> str:
    """Return the error message of an import, with and without an existing dataset."""
    with cli.assert_unchanged():
        message = cli("dataset", "import", name, file, *words, code=1).err
        cli("dataset", "import", "shop.fresh", file, *words, code=1)
    assert message.startswith("penstock: ")
    assert message.removesuffix("\n").isprintable()
    return message


def read(cli: CliRunner, name: str) -> list[dict[str, object]]:
    return cli("dataset", "read", name, "--json").rows


# Text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "Empty CSV", id="nothing"),
        pytest.param(b"\n\n", "", id="blank lines"),
        pytest.param(b"id,word\n1,one\n2\n", "Expected 2 columns, got 1", id="a short row"),
        pytest.param(b"id,word\n1,one,more\n", "Expected 2 columns, got 3", id="a long row"),
        pytest.param(b"id,id\n1,2\n", "Duplicate column names", id="a duplicate header name"),
        pytest.param(b"id,ID\n1,2\n", "Duplicate column names", id="a header with names that differ only in case"),
        pytest.param(b"id,\n1,2\n", "Invalid column name", id="a header without a name"),
        pytest.param(b"id,\xff\n1,2\n", "utf-8", id="a header that is not valid UTF-8"),
        pytest.param(b"id,wo\x1b[31mrd\n1,2\n", "Invalid column name", id="a header with terminal control characters"),
        pytest.param(b"id,word\n1,\xff\xfe\n", "UTF", id="a value that is not valid UTF-8"),
        pytest.param(b"id,word\n" + b"1,x\n" * BLOCK_BYTES + b"2,\xff\n", "UTF", id="a late value that is not valid UTF-8"),
        pytest.param("id,word\n1,x\n".encode("utf-16"), "", id="UTF-16"),
        pytest.param(b"id,word\n1," + b"x" * 2 * BLOCK_BYTES + b"\n", "a row is longer", id="a very long line"),
        pytest.param(b"id,word\n1,\"" + b"x\n" * BLOCK_BYTES, "a quote is not closed", id="an unclosed quote"),
        pytest.param(b"id,word\n" + b"1,x\n" * BLOCK_BYTES + b"x,x\n", "--type NAME=TYPE", id="another type after the first block"),
        pytest.param(b"PAR1\x00\x01\x02\n\xffPAR1", "", id="no text at all"),
    ],
)  # fmt: skip
def test_broken_csv_is_rejected(cli: CliRunner, orders_dataset: str, content: bytes, message: str) -> None:
    Path("x.csv").write_bytes(content)
    assert message in import_error(cli, "x.csv")


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        pytest.param(b"\xef\xbb\xbfid,word\n1,x\n", [(1, "x")], id="a byte order mark"),
        pytest.param(b"id,word\r\n1,x\r\n", [(1, "x")], id="Windows line ends"),
        pytest.param(b"id,word\n1,x", [(1, "x")], id="no line end at the end"),
        pytest.param(b"id,word\n\n1,x\n\n", [(1, "x")], id="blank lines"),
        pytest.param(b'id,word\n1,"a ""b"",\nc"\n', [(1, 'a "b",\nc')], id="quotes, commas and lines in a value"),
        pytest.param(b'id,word\n1,\n2,""\n3,NA\n', [(1, None), (2, ""), (3, "NA")], id="NULL, empty text, and NA"),
        pytest.param(b"id,word\n1,a\x00b\n", [(1, "a\x00b")], id="NUL in a value"),
        pytest.param(b"word,id\nx,1\n", [(1, "x")], id="columns in another order"),
        pytest.param(b"id\n1\n", [(1, None)], id="a missing column"),
        pytest.param("id,word\n1,żółć 😀\n".encode(), [(1, "żółć 😀")], id="other alphabets"),
        pytest.param(b"id,word\n", [], id="only a header"),
        pytest.param(b"id,word\n1,12:30:00\n", [(1, "12:30:00")], id="a time of day, read as text"),
        pytest.param(
            b"id,word\n1," + b"x" * (BLOCK_BYTES // 2) + b"\n", [(1, "x" * (BLOCK_BYTES // 2))], id="a long line"
        ),
    ],
)
def test_unusual_csv_is_read_unchanged(cli: CliRunner, content: bytes, rows: list[tuple[int, str | None]]) -> None:
    cli("dataset", "create", "a.b", "-c", "id:int64", "-c", "word:string")
    Path("x.csv").write_bytes(content)
    cli("dataset", "import", "a.b", "x.csv")
    assert [(row["id"], row["word"]) for row in read(cli, "a.b")] == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "Empty JSON", id="nothing"),
        pytest.param(b'{"id": 1}\n{"id": 2\n', "in row 1", id="an invalid line"),
        pytest.param(b'[{"id": 1}, {"id": 2}]', "every line must be an object", id="one array"),
        pytest.param(b"1\n2\n", "every line must be an object", id="numbers"),
        pytest.param(b'{"id": 1}\n{"id": "x"}\n', "--type", id="numbers and texts"),
        pytest.param(b'{"id": 1, "id": 2}\n', "twice", id="a duplicate name"),
        pytest.param(b'{"id": 1, "word": "\xff"}\n', "UTF8", id="a value that is not valid UTF-8"),
        pytest.param(b'{"id": 1, "word": "\\ud800"}\n', "surrogate", id="an incomplete character"),
        pytest.param(b'{"id": 1, "word": {"a": 1}}\n{"id": 1, "word": 2}\n', "", id="an object and a number"),
        pytest.param(
            b'{"id": 1}\n' * BLOCK_BYTES + b'{"id": "x"}\n', "--type", id="another type after the first block"
        ),
        pytest.param(b"[" * 100_000, "", id="too deep"),
        pytest.param(
            b'{"id": 1, "word": "' + b"x" * 2 * BLOCK_BYTES + b'"}\n', "a row is longer", id="a very long line"
        ),
        pytest.param(b"\x00\x01\x02", "", id="no text at all"),
    ],
)
def test_broken_json_lines_are_rejected(cli: CliRunner, orders_dataset: str, content: bytes, message: str) -> None:
    Path("x.jsonl").write_bytes(content)
    assert message in import_error(cli, "x.jsonl")


def test_nested_json_is_read_unchanged(cli: CliRunner) -> None:
    rows = [{"id": 1, "a": {"b": [1, 2], "c": None}}, {"id": 2, "a": {"b": [], "c": "x"}}, {"id": 3, "a": None}]
    Path("x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cli("dataset", "import", "a.b", "x.jsonl")
    assert read(cli, "a.b") == rows


def test_json_field_after_the_first_block_is_read_or_rejected(cli: CliRunner) -> None:
    Path("x.jsonl").write_bytes(b'{"id": 1}\n' * (BLOCK_BYTES // 8) + b'{"id": 2, "late": "x"}\n')
    with cli.assert_unchanged():
        assert "--type" in cli("dataset", "import", "a.b", "x.jsonl", code=1).err
    cli("dataset", "import", "a.b", "x.jsonl", "--type", "late=string")
    cli("dataset", "import", "a.b", "x.jsonl")  # the dataset has the column now
    result = cli("dataset", "read", "a.b", "--where", "late IS NOT NULL", "--json")
    assert result.rows == [{"id": 2, "late": "x"}] * 2


def test_numbers_in_json_become_decimals_only_if_they_fit(cli: CliRunner) -> None:
    Path("x.jsonl").write_text('{"n": 1}\n{"n": 0.1}\n{"n": null}\n')
    cli("dataset", "import", "a.b", "x.jsonl", "--type", "n=decimal(9,2)")
    assert [row["n"] for row in read(cli, "a.b")] == ["1.00", "0.10", None]
    Path("x.jsonl").write_text('{"n": 1}\n{"n": 0.125}\n')
    with cli.assert_unchanged():
        assert "more digits" in cli("dataset", "import", "a.b", "x.jsonl", "--type", "n=decimal(9,2)", code=1).err


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_truncated_compressed_file_is_rejected(cli: CliRunner, orders_dataset: str, cut: int) -> None:
    packed = gzip.compress(b"id,word\n" + b"".join(b"%d,word\n" % i for i in range(1_000)))
    Path("x.csv.gz").write_bytes(packed[:-cut])
    import_error(cli, "x.csv.gz")


def test_compressed_file_of_several_members_is_read_completely(cli: CliRunner) -> None:
    Path("x.csv.gz").write_bytes(b"".join(gzip.compress(compressed) for compressed in (b"id\n1\n", b"2\n3", b"4\n")))
    cli("dataset", "import", "a.b", "x.csv.gz")
    assert read(cli, "a.b") == [{"id": 1}, {"id": 2}, {"id": 34}]


# Parquet


def _parquet(table: pa.Table = TABLE, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"row_group_size": 100, **options})
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda _: b"", id="nothing"),
        pytest.param(lambda _: b"PAR1", id="a mark"),
        pytest.param(lambda _: b"PAR1PAR1", id="two marks"),
        pytest.param(lambda _: os.urandom(2_000), id="random bytes"),
        pytest.param(lambda raw: raw[: len(raw) // 2], id="the first half"),
        pytest.param(lambda raw: raw[len(raw) // 2 :], id="the second half"),
        pytest.param(lambda raw: raw[:-1], id="one byte missing"),
        pytest.param(lambda raw: raw[:-8] + struct.pack("<I", 1 << 31) + b"PAR1", id="a footer of 2 GB"),
        pytest.param(lambda raw: raw[:-8] + struct.pack("<I", 3) + b"PAR1", id="a footer of 3 bytes"),
        pytest.param(lambda raw: raw[:4] + bytes(len(raw) - 8 - _footer(raw)) + raw[-8 - _footer(raw) :], id="no data"),
        pytest.param(lambda _: b"id,word\n1,one\n", id="CSV"),
    ],
)
def test_broken_parquet_is_rejected(cli: CliRunner, orders_dataset: str, broken: Callable[[bytes], bytes]) -> None:
    Path("x.parquet").write_bytes(broken(_parquet()))
    import_error(cli, "x.parquet")


def _footer(raw: bytes) -> int:
    return int(struct.unpack("<I", raw[-8:-4])[0])


IMPORT_SCRIPT = """
import json, random, sys
from pathlib import Path
import penstock
from penstock import config

start, stop, raw, ending = int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]).read_bytes(), sys.argv[5]
low, high = int(sys.argv[6]), int(sys.argv[7])
settings = config.load_settings({}, workspace=Path(sys.argv[1]), durable=False, write_bytes=1 << 26)
with penstock.open(create=True, settings=settings) as lake:
    for seed in range(start, stop):
        rng, mutant = random.Random(seed), bytearray(raw)
        for _ in range(rng.choice((1, 1, 2, 5))):
            mutant[rng.randrange(low, high)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        print(seed, flush=True)
        file = Path(f"mutant-{start}.{ending}")
        file.write_bytes(mutant)
        try:
            lake.create(f"mutant.m{seed}", file)
        except penstock.PenstockError:
            pass
    created = {dataset.name for dataset in lake.datasets()}
    for dataset in lake.datasets():
        dataset.to_arrow()
    files = {path.name for path in Path(sys.argv[1], "data").rglob("*") if path.is_file()}
    live_files = {Path(file.path).name for dataset in lake.datasets() for file in dataset.files()}
print(json.dumps({"created": len(created), "unexpected": sorted(files - live_files)}))
"""


def import_mutants(raw: bytes, ending: str, low: int, high: int, count: int) -> None:
    """Import files with a few wrong bytes. Each import succeeds or raises an error; the process must not end."""
    Path("raw").write_bytes(raw)
    ranges = [(position, position + count // 2) for position in (0, count // 2)]
    children = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                IMPORT_SCRIPT,
                f"lake-{start}",
                *map(str, (start, stop)),
                "raw",
                ending,
                str(low),
                str(high),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for start, stop in ranges
    ]
    for child in children:
        out, err = child.communicate(timeout=120)
        *seeds, reported = out.decode().splitlines()
        assert child.returncode == 0, (
            f"after seed {seeds and seeds[-1]}: exit {child.returncode}: {reported} {err.decode()[-2_000:]}"
        )
        assert json.loads(reported)["unexpected"] == []


def test_parquet_with_a_wrong_footer_is_read_or_rejected(cli: CliRunner, soak: bool) -> None:
    raw = _parquet()
    import_mutants(raw, "parquet", len(raw) - 8 - _footer(raw), len(raw) - 8, 4_000 if soak else 200)


def test_parquet_with_corrupt_pages_is_read_or_rejected(cli: CliRunner, soak: bool) -> None:
    raw = _parquet(compression="none", use_dictionary=["word"])
    import_mutants(raw, "parquet", 4, len(raw) - 8 - _footer(raw), 4_000 if soak else 200)


@pytest.mark.parametrize("format_", ["file", "stream"])
def test_arrow_with_corrupt_bytes_is_read_or_rejected(cli: CliRunner, format_: str, soak: bool) -> None:
    rows = TABLE.append_column("kind", TABLE["word"].dictionary_encode())
    raw = _arrow(rows, stream=format_ == "stream", compression="zstd")
    import_mutants(raw, "arrow", 8, len(raw), 4_000 if soak else 200)


# Arrow


def _arrow(table: pa.Table, *, stream: bool = False, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema, options=options) as writer:
        writer.write(table)
    return sink.getvalue().to_pybytes()


WORDS = ["seven..", "x" * 1_227]  # begin and end at 0, 7, 1234
INVALID_OFFSETS: dict[str, tuple[pa.Array, bytes, bytes]] = {
    "far beyond the end": (pa.array(WORDS), struct.pack("<3i", 0, 7, 1234), struct.pack("<3i", 0, 7, 2_000_000_000)),
    "before the start": (pa.array(WORDS), struct.pack("<3i", 0, 7, 1234), struct.pack("<3i", -5, 7, 1234)),
    "backwards": (pa.array(WORDS), struct.pack("<3i", 0, 7, 1234), struct.pack("<3i", 0, 1234, 7)),
    "in a wide column": (
        pa.array(WORDS, pa.large_string()), struct.pack("<3q", 0, 7, 1234), struct.pack("<3q", 0, 7, 1 << 50),
    ),
    "in a view": (
        pa.array(WORDS, pa.string_view()), struct.pack("<i4sii", 1_227, b"xxxx", 0, 0),
        struct.pack("<i4sii", 1_227, b"xxxx", 9, 1 << 30),
    ),
    "in a list": (
        pa.array([list(range(7)), list(range(1_227))]), struct.pack("<3i", 0, 7, 1234), struct.pack("<3i", 0, 7, 99_999),
    ),
    "in a dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int64()), pa.array(["x", "y"])),
        struct.pack("<2q", 1, 0), struct.pack("<2q", 1, 99),
    ),
    "bytes that are not UTF-8": (pa.array(WORDS), b"seven..", b"seven\xff\xff"),
}  # fmt: skip


def _invalid_offsets(name: str, *, stream: bool) -> bytes:
    """Return a column with invalid offsets."""
    column, valid, invalid = INVALID_OFFSETS[name]
    raw = _arrow(pa.table({"id": [7, 8], "word": column}), stream=stream)
    assert valid in raw
    position = raw.rindex(valid)  # the last match: a header may contain the same bytes
    return raw[:position] + invalid + raw[position + len(valid) :]


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
@pytest.mark.parametrize("case", INVALID_OFFSETS)
def test_arrow_with_invalid_offsets_is_rejected(cli: CliRunner, orders_dataset: str, case: str, stream: bool) -> None:
    Path("x.arrow").write_bytes(_invalid_offsets(case, stream=stream))
    import_error(cli, "x.arrow")


@pytest.mark.parametrize("case", INVALID_OFFSETS)
def test_batches_with_invalid_offsets_from_python_are_rejected(lake: Lake, case: str) -> None:
    rows = pa.ipc.open_stream(_invalid_offsets(case, stream=True)).read_all()
    for source in (rows, rows.to_batches()[0], rows.to_reader()):
        with pytest.raises(PenstockError):
            lake.create("a.b", source)
    assert lake.datasets() == []


@pytest.mark.parametrize("format_", ["file", "stream"])
def test_truncated_arrow_is_rejected(cli: CliRunner, orders_dataset: str, format_: str) -> None:
    raw = _arrow(TABLE, stream=format_ == "stream")
    for length in (0, 3, 8, 100, len(raw) // 2, len(raw) - (40 if format_ == "stream" else 1)):
        Path("x.arrow").write_bytes(raw[:length])
        import_error(cli, "x.arrow")


@pytest.mark.parametrize("claimed_bytes", [1 << 31, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_compressed_arrow_with_a_wrong_size_is_rejected(
    cli: CliRunner, orders_dataset: str, claimed_bytes: int, stream: bool
) -> None:
    raw = _arrow(TABLE, stream=stream, compression="zstd")
    actual_bytes = struct.pack("<q", TABLE["id"].nbytes)
    assert actual_bytes in raw
    Path("x.arrow").write_bytes(raw.replace(actual_bytes, struct.pack("<q", claimed_bytes)))
    assert "a batch has more than" in import_error(cli, "x.arrow")


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_uncompressed_sizes_match_the_decompressed_batches(cli: CliRunner, compression: str | None) -> None:
    rows = pa.table({"id": range(10_000), "word": ["same"] * 10_000})
    for stream in (True, False):
        Path("x.arrow").write_bytes(_arrow(rows, stream=stream, compression=compression))
        assert rows.nbytes <= max(arrow_ipc.uncompressed_sizes(Path("x.arrow"))) < rows.nbytes + 200


def test_arrow_file_of_polars_is_read(cli: CliRunner) -> None:
    frame = polars.DataFrame(
        {"id": [1, 2], "word": ["x" * 50, "y"], "kind": polars.Series(["a", "b"], dtype=polars.Categorical)}
    )
    frame.write_ipc("x.arrow", compression="zstd")
    frame.write_ipc_stream("x.arrows")
    cli("dataset", "import", "a.b", "x.arrow", "x.arrows")
    assert read(cli, "a.b") == frame.to_dicts() * 2


def test_files_with_different_schemas_are_imported_if_they_fit_the_dataset(cli: CliRunner) -> None:
    pq.write_table(
        pa.table({"id": pa.array([1], pa.int32()), "kind": pa.array(["x"]).dictionary_encode()}), "1.parquet"
    )
    pq.write_table(pa.table({"id": pa.array([2], pa.int64()), "note": ["y"]}), "2.parquet")
    with cli.assert_unchanged():
        assert "note" in cli("dataset", "import", "a.b", "1.parquet", "2.parquet", code=1).err
    cli("dataset", "create", "a.b", "-c", "id:int64", "-c", "kind:string", "-c", "note:string")
    cli("dataset", "import", "a.b", "1.parquet", "2.parquet", "1.parquet")
    assert [tuple(row.values()) for row in read(cli, "a.b")] == [(1, "x", None), (2, None, "y"), (1, "x", None)]


def test_text_file_uses_the_types_of_the_dataset(cli: CliRunner) -> None:
    cli("dataset", "create", "a.b", "-c", "code:string", "-c", "n:decimal(9,2)", "-c", "day:date", "-c", "f:double")
    Path("x.csv").write_text("code,n,day,f\n007,1,2024-01-01,\n")
    Path("x.jsonl").write_text('{"code": "007", "n": 1, "day": "2024-01-01", "f": null}\n')
    cli("dataset", "import", "a.b", "x.csv", "x.jsonl")
    assert read(cli, "a.b") == [{"code": "007", "n": "1.00", "day": "2024-01-01", "f": None}] * 2


# Small files that become large


IMPORT_AND_MEASURE = """
import sys
from pathlib import Path
import penstock
from penstock import config

settings = config.load_settings({}, workspace=Path("bombed"), durable=False, write_bytes=64 << 20)
with penstock.open(create=True, settings=settings) as lake:
    try:
        lake.create("a.b", sys.argv[1])
        print("created")
    except penstock.PenstockError as error:
        print(error.reason)
    assert not any(path.is_file() for path in Path("bombed/data").rglob("*")) or lake.datasets()
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
print(int(peak) >> 10)
"""


def _dictionary(length: int, rows: int) -> pa.Table:
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * length]))
    return pa.table({"word": shared})


def _views() -> pa.Table:
    view = struct.pack("<i4sii", 8 << 20, b"xxxx", 0, 0)
    words = pa.Array.from_buffers(
        pa.string_view(), 50_000, [None, pa.py_buffer(view * 50_000), pa.py_buffer(b"x" * (8 << 20))]
    )
    return pa.table({"word": words})


def _zeros(size: int) -> bytes:
    compressed = gzip.compress(b"0,0\n" * (1 << 18), 1)
    return gzip.compress(b"id,word\n") + compressed * (size >> 20)


BOMBS: dict[str, Callable[[], bytes]] = {
    "texts.parquet": lambda: _parquet(_dictionary(8 << 20, 100_000), store_schema=False, row_group_size=1 << 20, dictionary_pagesize_limit=1 << 30),
    "categories.parquet": lambda: _parquet(_dictionary(8 << 20, 100_000), row_group_size=1 << 20, dictionary_pagesize_limit=1 << 30),
    "lists.parquet": lambda: _parquet(
        pa.table({"l": pa.ListArray.from_arrays(list(range(0, 100_001, 100)), _dictionary(1 << 20, 100_000)["word"].combine_chunks())}),
        store_schema=False, row_group_size=1 << 20, dictionary_pagesize_limit=1 << 30,
    ),
    "dictionary.arrow": lambda: _arrow(_dictionary(8 << 20, 100_000), compression="zstd"),
    "views.arrow": lambda: _arrow(_views(), compression="zstd"),
    "packed.arrow": lambda: _arrow(pa.table({"id": pa.Array.from_buffers(pa.int64(), 1 << 26, [None, pa.py_buffer(bytes(1 << 29))])}), compression="zstd"),
    "packed.csv.gz": lambda: _zeros(1 << 28),
    "line.csv.gz": lambda: gzip.compress(b"id\n" + b"x" * (256 << 20), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_highly_compressed_file_is_read_in_bounded_memory(cli: CliRunner, name: str) -> None:
    bomb = BOMBS[name]()
    assert len(bomb) < 3 << 20
    Path(name).write_bytes(bomb)
    completed = subprocess.run(
        [sys.executable, "-c", IMPORT_AND_MEASURE, name], capture_output=True, text=True, timeout=60
    )
    assert completed.returncode == 0, completed.stderr
    outcome, peak = completed.stdout.split()
    assert outcome in {"write_too_large", "batch_too_large", "row_too_large", "broken_file"}
    assert int(peak) < 1_000  # MB


# Names


COLUMNS = [
    "plain", "Upper Case", "select", "order", "ROWNUM", "a.b", "a b", "a,b", " padded ", "it's", 'say "hi"', "back`tick",
    "per%cent", "semi;colon", "drop table x;--", "größe", "数量", "😀", "a/b", "../x", "$1", "{x}", "null", "true", "1", "-",
    "a\u00a0b"[:1] + "_", "x" * 255, "a=b", "a:b", "and", "_rowids", "commit", "ré\u0301",
]  # fmt: skip


@pytest.mark.parametrize("format", ["parquet", "csv", "jsonl", "arrow"])
def test_unusual_column_names_survive_import_and_export(cli: CliRunner, format: str) -> None:
    rows = pa.table({name: [f"row {i}", None] for i, name in enumerate(COLUMNS)})
    pq.write_table(rows, "x.parquet")
    cli("dataset", "import", "a.b", "x.parquet")
    cli("dataset", "export", "a.b", f"y.{format}")
    cli("dataset", "import", "a.c", f"y.{format}")
    cli("dataset", "compact", "a.c")
    assert [f["name"] for f in cli("dataset", "show", "a.c", "--json").json["schema"]] == COLUMNS
    assert read(cli, "a.c") == rows.to_pylist()


def test_unusual_column_names_can_be_filtered_and_selected(lake: Lake) -> None:
    ds = lake.create("a.b", pa.table({name: [i, i + 1] for i, name in enumerate(COLUMNS)}))
    for i, name in enumerate(COLUMNS):
        quoted = "`" + name.replace("`", "``") + "`"
        assert ds.to_arrow([name], f"{quoted} > {i}").to_pydict() == {name: [i + 1]}


@pytest.mark.parametrize("name", COLUMNS)
def test_unusual_column_names_work_on_the_command_line(cli: CliRunner, name: str) -> None:
    pq.write_table(pa.table({"other": [1, 2], name: [3, 4]}), "x.parquet")
    cli("dataset", "import", "a.b", "x.parquet")
    quoted = "`" + name.replace("`", "``") + "`"
    result = cli("dataset", "read", "a.b", "--columns", quoted, "--where", f"{quoted} = 4", "--json")
    assert result.rows == [{name: 4}]


@pytest.mark.parametrize(
    "names",
    [["rowid"], ["_rowid"], ["ROWID"], ["RowId"], ["_RowID"], [""], [" "], ["\t"], ["a\nb"], ["a\x00b"], ["\x1b[31m"],
     ["a\x7f"], ["\u202egnp.exe"], ["\u2028"], ["x" * 256], ["x" * 300], ["a", "A"], ["ä", "Ä"], ["a", "a"],
     [f"c{i}" for i in range(5_000)]],
    ids=lambda names: ascii(names)[:30],
)  # fmt: skip
def test_unreadable_column_names_are_rejected(cli: CliRunner, orders_dataset: str, names: list[str]) -> None:
    rows = pa.Table.from_arrays([pa.array([1])] * len(names), names)
    Path("x.arrow").write_bytes(_arrow(rows))
    assert "column" in import_error(cli, "x.arrow", name="shop.other").lower()
    assert "column" in import_error(cli, "x.arrow").lower()


@pytest.mark.parametrize(
    "name",
    ["", "a", "a.", ".b", ".", "..", "a.b.c", "a..b", "../a.b", "../../etc.passwd", "a/b.c", "a.b/c", "/a.b", "a\\b.c", "a b.c",
     " a.b", "a.b ", "a.b\n", "é.b", "а.b", "a.'b'", 'a."b"', "a.b;", "a.b--", "1.b", "a.1", "$a.b", "a.%", "x" * 300, "x" * 300 + ".b",
     "a." + "x" * 129, "a.\x1b[31m", "😀.😀", "~.b", "-.-"],
    ids=lambda name: ascii(name)[:30],
)  # fmt: skip
def test_invalid_dataset_names_are_rejected(cli: CliRunner, orders_dataset: str, name: str) -> None:
    with cli.assert_unchanged():
        for words in (["import", "--", name, "three.csv"], ["create", "-c", "x:int64", "--", name], ["read", "--", name],
                  ["export", "--", name, "out.csv"], ["drop", "--yes", "--", name]):  # fmt: skip
            result = cli("dataset", *words, code=1)
            assert result.out == b""
            assert result.err.removesuffix("\n").isprintable()


def test_dataset_name_with_nul_is_rejected(lake: Lake) -> None:
    for name in ("a\x00.b", "a.b\x00"):
        with pytest.raises(PenstockError):
            lake.create(name, {"x": [1]})
    with pytest.raises(PenstockError):
        lake.create("a.b", "x\x00.csv")


def test_text_with_nul_is_stored_on_every_database(lake: Lake) -> None:
    ds = lake.create("a.b", {"x": ["\x00", "a\x00b", None]})
    assert ds.to_arrow(where="x = 'a\x00b'").num_rows == 1
    assert ds.to_arrow()["x"].to_pylist() == ["\x00", "a\x00b", None]


# Special files


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.csv", "File missing.csv not found"),
        ("loop.csv", "Cannot open"),
        ("pipe.csv", "neither a file nor a folder"),
        ("folder.csv", "contains no Parquet files"),
        ("three.csv/x.csv", "Cannot open"),
        ("/dev/zero", "neither a file nor a folder"),
        ("/dev/stdin", ""),
        ("x" * 300, "Cannot open"),
        ("years", "year=2024"),
    ],
)
def test_path_that_is_no_regular_file_is_rejected_without_waiting(
    cli: CliRunner, orders_dataset: str, name: str, message: str
) -> None:
    os.symlink("loop.csv", "loop.csv")
    os.mkfifo("pipe.csv")
    Path("folder.csv").mkdir()
    Path("years/year=2024").mkdir(parents=True)
    pq.write_table(TABLE, "years/year=2024/x.parquet")
    assert message in import_error(cli, name)
    if name == "folder.csv":
        assert "Only Parquet files are read from a folder" in import_error(cli, name, "--format", "csv")


def test_file_without_read_permission_is_rejected(
    cli: CliRunner, orders_dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("x.csv").write_text("id\n1\n")

    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pyarrow.input_stream", deny)  # root can read every file
    assert "Permission denied" in import_error(cli, "x.csv")


def test_file_with_the_suffix_of_another_format_is_rejected(cli: CliRunner, orders_dataset: str) -> None:
    for ending in ("parquet", "csv", "jsonl", "arrow"):
        cli("dataset", "export", orders_dataset, f"good.{ending}")
    for message in ("parquet", "csv", "jsonl", "arrow"):
        for real in {"parquet", "csv", "jsonl", "arrow"} - {message}:
            Path(f"x.{message}").write_bytes(Path(f"good.{real}").read_bytes())
            with cli.assert_unchanged():
                cli("dataset", "import", orders_dataset, f"x.{message}", code=1)
