"""New Parquet files: how Spark is told to lay them out, and which it has left in a folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.merge import Layout, Output, Sink
from penstock.engines.spark.jobs import Stages, Watch
from penstock.errors import Unsupported

_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4_raw", "none": "uncompressed"}


def codec(layout: Layout) -> str:
    """Spark's word for it."""
    try:
        return _CODECS[layout.codec.lower()]
    except KeyError:
        raise Unsupported(
            "codec_not_for_engine",
            f"Spark cannot write Parquet with {layout.codec}; choose one of {', '.join(_CODECS)}, or engine 'pyarrow'",
        ) from None


def options(layout: Layout, codec: str, file_rows: int = 0) -> dict[str, Any]:
    """`file_rows`: a file with so many rows is closed, and another begun; 0: a task writes one file."""
    return {
        "compression": codec,
        "maxRecordsPerFile": file_rows,
        "parquet.block.row.count.limit": layout.group_rows,
        "mapreduce.fileoutputcommitter.marksuccessfuljobs": False,
    }


def written(folder: str, parts: Mapping[str, pa.Array]) -> Iterator[Output]:
    """The files that have rows. Folders below are the numbers of partition values."""
    for path in sorted(Path(folder).rglob("*.parquet")):
        rows = pq.read_metadata(path).num_rows
        if rows:
            numbers = [int(word.rpartition("=")[2]) for word in path.relative_to(folder).parts[:-1]]
            values = {name: parts[name][n].as_py() for name, n in zip(parts, numbers, strict=True)}
            yield Output(str(path), rows, parts=values)


class Beat:
    """Tells a sink how many rows there are by now, as far as it can be known, and a watch how far Spark is."""

    def __init__(self, sink: Sink, rows: int, jobs: int, watch: Watch | None) -> None:
        """`rows`: how many there will be after all these jobs; 0: nobody knows."""
        self._sink, self._rows, self._jobs, self._watch = sink, rows, jobs, watch
        self._done = self._told = 0

    def __call__(self, stages: Stages) -> None:
        self._tell(int((self._done + stages.share) / self._jobs * self._rows))
        if self._watch is not None:
            self._watch(stages)

    def passed(self, rows: int) -> None:
        """Another job is done; `rows` are written in all."""
        self._done += 1
        self._tell(rows)

    def _tell(self, rows: int) -> None:
        self._sink.beat(max(rows - self._told, 0))
        self._told = max(rows, self._told)
