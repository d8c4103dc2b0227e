"""Write Parquet files with Spark: writer options, output listing and row estimates."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.merge import FileLayout, FileSink, OutputFile
from penstock.core.progress import Progress, ProgressCallback
from penstock.errors import Unsupported

_CODEC_NAMES = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4_raw", "none": "uncompressed"}


def spark_codec(layout: FileLayout) -> str:
    """Return Spark's name of the layout's codec."""
    try:
        return _CODEC_NAMES[layout.codec.lower()]
    except KeyError:
        raise Unsupported(
            "codec_not_for_engine",
            {"codec": layout.codec, "codecs": ", ".join(_CODEC_NAMES)},
        ) from None


def writer_options(layout: FileLayout, codec: str, file_rows: int = 0) -> dict[str, Any]:
    """Return writer options. A new file starts after `file_rows` rows; 0 means one file per task."""
    return {
        "compression": codec,
        "maxRecordsPerFile": file_rows,
        "parquet.block.row.count.limit": layout.group_rows,
        "mapreduce.fileoutputcommitter.marksuccessfuljobs": False,
    }


def list_output_files(folder: str, partition_values: Mapping[str, pa.Array]) -> Iterator[OutputFile]:
    """Yield the non-empty files of a folder. Subfolders are the numbers of partition values."""
    for path in sorted(Path(folder).rglob("*.parquet")):
        rows = pq.read_metadata(path).num_rows
        if rows:
            value_numbers = [int(word.rpartition("=")[2]) for word in path.relative_to(folder).parts[:-1]]
            values = {
                name: partition_values[name][n].as_py() for name, n in zip(partition_values, value_numbers, strict=True)
            }
            yield OutputFile(str(path), rows, partition_values=values)


class RowEstimate:
    """Estimate the written rows from the completed tasks of a job, and report them to a sink."""

    def __init__(self, sink: FileSink, rows: int, jobs: int, on_job: ProgressCallback | None) -> None:
        """Configure the estimate.

        Args:
            rows: rows expected after all jobs; 0 if unknown
            jobs: number of jobs
            on_job: receives the progress of each job after the sink
        """
        self._sink, self._rows, self._jobs, self._on_job = sink, rows, jobs, on_job
        self._finished_jobs = self._reported_rows = 0

    def __call__(self, job: Progress) -> None:
        share = job.tasks_done / job.tasks if job.tasks else 0.0
        self._report(int((self._finished_jobs + share) / self._jobs * self._rows))
        if self._on_job is not None:
            self._on_job(job)

    def finish_job(self, rows: int) -> None:
        """Record the end of a job; `rows` is the total written so far."""
        self._finished_jobs += 1
        self._report(rows)

    def _report(self, rows: int) -> None:
        self._sink.add_rows(max(rows - self._reported_rows, 0))
        self._reported_rows = max(rows, self._reported_rows)
