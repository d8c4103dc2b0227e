"""Fetch the jars that Spark needs for `s3a://` paths, by Maven coordinates, and verify their checksums.

usage: python -m tools.spark_jars [--folder DIR] [--lock FILE]     default: ~/.cache/penstock/jars/<name of the lock file>
"""

import argparse
import sys
from pathlib import Path

from penstock.errors import PenstockError
from penstock.maven_jars import SPARK_S3A_JARS, default_folder, fetch_jars


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--lock", type=Path, default=SPARK_S3A_JARS)
    arguments = parser.parse_args()
    folder = arguments.folder or default_folder(arguments.lock)
    try:
        jars = fetch_jars(folder, arguments.lock)
    except PenstockError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    megabytes = sum(jar.stat().st_size for jar in jars) / 1e6
    sys.stdout.write(f"{len(jars)} jars, {megabytes:.1f} MB, in {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
