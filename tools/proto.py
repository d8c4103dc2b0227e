"""Generate the Python code of the Flight messages from `flight.proto`.

`--check` compares the generated code with the files and writes nothing.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from grpc_tools import protoc

SOURCE = Path(__file__).parents[1] / "src"
PROTO_FILE = "penstock/flight/flight.proto"
GENERATED = {
    "penstock/flight/flight_pb2.py": "# ruff: noqa\n# fmt: off\n# mypy: ignore-errors\n",
    "penstock/flight/flight_pb2.pyi": "# ruff: noqa\n# fmt: off\n# mypy: ignore-errors\n",
}


def generate() -> dict[str, str]:
    """Return the generated files by their path below `src`."""
    with TemporaryDirectory() as folder:
        arguments = ["protoc", f"-I{SOURCE}", f"--python_out={folder}", f"--pyi_out={folder}", PROTO_FILE]
        if protoc.main([*arguments, f"-I{Path(protoc.__file__).parent / '_proto'}"]):
            sys.exit(f"{PROTO_FILE} does not compile")
        return {name: head + (Path(folder) / name).read_text("utf-8") for name, head in GENERATED.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a file is not current")
    check = parser.parse_args().check
    for name, text in generate().items():
        path = SOURCE / name
        if not check:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            sys.exit(f"src/{name} is not current; run `python -m tools.proto`")


if __name__ == "__main__":
    main()
