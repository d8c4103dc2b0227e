"""Check that the tree can be released: a dated changelog section for the version, a wheel that builds, no local changes.

usage: python -m tools.release
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import penstock

ROOT = Path(__file__).parents[1]


def main() -> int:
    errors = [*_changelog_errors(penstock.__version__), *_tree_errors(), *_wheel_errors(penstock.__version__)]
    for error in errors:
        sys.stderr.write(f"release: {error}\n")
    if not errors:
        sys.stdout.write(f"Penstock {penstock.__version__} can be tagged: git tag v{penstock.__version__}\n")
    return 1 if errors else 0


def _changelog_errors(version: str) -> list[str]:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}$", text, re.MULTILINE):
        return [f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'. Move the entries of Unreleased there"]
    unreleased = re.search(r"^## \[Unreleased\]\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    if unreleased and unreleased[1].strip():
        return [f"CHANGELOG.md has entries under Unreleased. Move them to the section of {version}"]
    return []


def _tree_errors() -> list[str]:
    changes = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [f"The tree has local changes, such as {changes.splitlines()[0]}. Commit them"] if changes else []


def _wheel_errors(version: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            return [f"The wheel does not build: {done.stderr.strip().splitlines()[-1]}"]
        names = [wheel.name for wheel in Path(folder).glob("*.whl")]
    expected = f"penstock-{version}-py3-none-any.whl"
    return [] if names == [expected] else [f"The build made {', '.join(names)}, not {expected}"]


if __name__ == "__main__":
    raise SystemExit(main())
