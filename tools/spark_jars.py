"""Fetch the jars that Spark needs for `s3a://` paths, by Maven coordinates, and verify their checksums.

usage: python -m tools.spark_jars [--folder DIR]     default: ~/.cache/penstock/jars/spark_s3a_jars
"""

import argparse
import sys
from pathlib import Path

from penstock.errors import PenstockError
from penstock.maven_jars import default_folder, fetch_jars


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=default_folder())
    folder = parser.parse_args().folder
    try:
        jars = fetch_jars(folder)
    except PenstockError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    megabytes = sum(jar.stat().st_size for jar in jars) / 1e6
    sys.stdout.write(f"{len(jars)} jars, {megabytes:.1f} MB, in {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
