"""Builds the sdist and, from it, the wheel, and checks that nothing of the package is left out.

The wheel must hold every tracked file of ``django_belay/``, SQL, templates and ``py.typed`` included.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIRED_ENDS = (".sql", "py.typed")
IN_SDIST = ("pyproject.toml", "LICENSE", "README.md", "tests/conftest.py", "example_project/__main__.py")


def build(target: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it as an index's users would build it."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(target))
    (sdist,) = target.glob("*.tar.gz")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(target), str(sdist))
    (wheel,) = target.glob("*.whl")
    return sdist, wheel


def run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def tracked_files() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "django_belay"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {name for name in listed.stdout.split("\0") if name}


def check(sdist: Path, wheel: Path) -> list[str]:
    """What is wrong, a line each."""
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    problems = [f"the wheel lacks {name}" for name in sorted(tracked_files() - in_wheel)]
    problems += [f"the sdist lacks {name}" for name in sorted({*tracked_files(), *IN_SDIST} - in_sdist)]
    problems += [
        f"no file of the wheel ends in {end}" for end in REQUIRED_ENDS if not _any_ends(in_wheel, end)
    ]
    problems += [
        f"the wheel holds {name}, which is not the package's"
        for name in sorted(in_wheel)
        if not name.startswith(("django_belay/", "django_belay-"))
    ]
    return problems


def _any_ends(names: set[str], end: str) -> bool:
    return any(name.endswith(end) for name in names)


def main() -> None:
    with tempfile.TemporaryDirectory() as target:
        sdist, wheel = build(Path(target))
        problems = check(sdist, wheel)
        sys.stdout.write("\n".join([*problems, f"{wheel.name}: {len(tracked_files())} files checked", ""]))
        sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
