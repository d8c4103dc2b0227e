"""Dataset versions that a request pins, and that a response reports: `finance.tx:3,finance.budget:7`."""

from collections.abc import Mapping

from penstock.core.names import DatasetName
from penstock.errors import Invalid

VERSIONS_PARAMETER = "versions"  # query parameter of a request
VERSIONS_HEADER = "x-penstock-versions"  # header of a response
_MAX_VERSION_DIGITS = 9


def parse_version_pins(text: str | None) -> dict[str, int]:
    """Parse the query parameter into versions by dataset name in lower case.

    Raises:
        Invalid: an item is not `schema.table:version`, or a dataset is pinned twice
    """
    pins = dict[str, int]()
    for item in [] if text is None else text.split(","):
        name, _, version = item.strip().rpartition(":")
        if not (version.isascii() and version.isdigit() and len(version) <= _MAX_VERSION_DIGITS):
            raise Invalid("bad_parameter.versions", parameter=VERSIONS_PARAMETER)
        key = DatasetName.parse(name).key
        if key in pins:
            raise Invalid("duplicate_parameter.versions", {"dataset": key}, parameter=VERSIONS_PARAMETER)
        pins[key] = int(version)
    return pins


def format_version_pins(versions: Mapping[str, int]) -> str:
    """Format versions by dataset name as the value of the parameter or the header."""
    return ",".join(f"{name}:{version}" for name, version in versions.items())
