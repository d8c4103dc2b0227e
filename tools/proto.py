"""Write the Python of Flight's messages from their description. `--check` only compares."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from grpc_tools import protoc

SOURCE = Path(__file__).parents[1] / "src"
MESSAGES = "penstock/flight/flight.proto"
MADE = {
    "penstock/flight/flight_pb2.py": "# ruff: noqa\n# fmt: off\n# mypy: ignore-errors\n",
    "penstock/flight/flight_pb2.pyi": "# ruff: noqa\n# fmt: off\n# mypy: ignore-errors\n",
}


def made() -> dict[str, str]:
    """The files, by their places below the source."""
    with TemporaryDirectory() as folder:
        asked = ["protoc", f"-I{SOURCE}", f"--python_out={folder}", f"--pyi_out={folder}", MESSAGES]
        if protoc.main([*asked, f"-I{Path(protoc.__file__).parent / '_proto'}"]):
            sys.exit(f"{MESSAGES} cannot be compiled")
        return {name: head + (Path(folder) / name).read_text("utf-8") for name, head in MADE.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a file is not current")
    check = parser.parse_args().check
    for name, text in made().items():
        path = SOURCE / name
        if not check:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            sys.exit(f"src/{name} is not current; run `python -m tools.proto`")


if __name__ == "__main__":
    main()
