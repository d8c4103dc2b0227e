"""Read rows from files and write rows to files: Parquet, CSV, JSON lines and Arrow, for the entry points."""

from penstock.storage.export_files import WRITERS, plain_json, write_file
from penstock.storage.file_formats import SUFFIX_FORMATS, format_of, format_suffix
from penstock.storage.import_files import FileRows, read_files
from penstock.storage.row_json import rows_to_json

__all__ = [
    "SUFFIX_FORMATS",
    "WRITERS",
    "FileRows",
    "format_of",
    "format_suffix",
    "plain_json",
    "read_files",
    "rows_to_json",
    "write_file",
]
