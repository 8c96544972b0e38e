"""Sets up what the two commands of the README need, with nothing but Python.

``python3 -m example_project`` and ``python3 -m tests`` call :func:`enter` first: it makes a virtual
environment in ``.venv/`` of the checkout, installs the project into it and starts the command anew
inside. Only the standard library is imported here.

An environment counts as whole only with its state file, which is written last and removed before any
change; without it the environment is made anew. A lock keeps concurrent starts apart.

``python3 -m example_project.bootstrap dev`` sets up for development and prints the interpreter's path.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
NO_VENV_OPTION = "--no-venv"
NO_VENV_VARIABLE = "BELAY_NO_VENV"  # the same as the option, for the processes that a command starts
REPORT_EVERY_S = 10
NETWORK_ERRORS = re.compile(
    r"NewConnectionError|ConnectTimeout|ReadTimeout|ConnectionError|Connection refused|Network is unreachable"
    r"|name resolution|Name or service not known|ProxyError|SSLError|No matching distribution"
)


class BootstrapError(Exception):
    """The environment cannot be made; the message says why and what to do."""


def enter(extra: str, *, module: str, arguments: list[str]) -> list[str]:
    """Go on inside an environment that has ``extra``: returns the arguments, or starts ``module`` there.

    Args:
        extra: The optional dependencies of ``pyproject.toml`` that the command needs.
        module: What to run with ``-m`` once the environment stands.
    """
    os.chdir(ROOT)
    try:
        if NO_VENV_OPTION in arguments or os.environ.get(NO_VENV_VARIABLE) == "1":
            require_distributions(extra)
            os.environ[NO_VENV_VARIABLE] = "1"
            return [argument for argument in arguments if argument != NO_VENV_OPTION]
        environment = Environment.of_this_interpreter()
        if not (environment.is_ready(extra) and environment.is_active()):
            prepare(environment, extra)
            _start(environment, module, arguments)
    except BootstrapError as error:
        sys.exit(f"{error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the next start makes the environment anew")
    return arguments


def _start(environment: Environment, module: str, arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    command = [str(environment.python), "-m", module, *arguments]
    os.execve(command[0], command, _clean_environ())


def _clean_environ() -> dict[str, str]:
    """The environment variables without those that lead an interpreter or pip out of its environment."""
    misleading = {
        "PYTHONHOME",
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_REQUIRE_VIRTUALENV",
        "__PYVENV_LAUNCHER__",
    }
    return {key: value for key, value in os.environ.items() if key not in misleading}


# -- what is wanted, and what is there ----------------------------------------------


@dataclass(frozen=True, kw_only=True)
class State:
    """What an environment was made from."""

    interpreter: str
    project: str
    extras: list[str]


@dataclass(frozen=True)
class Environment:
    """One virtual environment of the checkout."""

    path: Path

    @classmethod
    def of_this_interpreter(cls) -> Environment:
        return cls(ROOT / ".venv" / f"py{sys.version_info.major}{sys.version_info.minor}")

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def state_file(self) -> Path:
        return self.path / "belay-ready.json"

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")

    def is_active(self) -> bool:
        return os.path.realpath(sys.prefix) == os.path.realpath(self.path)

    def is_ready(self, extra: str) -> bool:
        state = self.read_state()
        return (
            state is not None
            and state.project == project_fingerprint()
            and self.is_of_this_interpreter(state)
            and set(distributions(extra)) <= {name for had in state.extras for name in distributions(had)}
        )

    def is_of_this_interpreter(self, state: State) -> bool:
        return state.interpreter == interpreter_fingerprint() and self.python.exists()

    def read_state(self) -> State | None:
        """What it was made from; ``None`` if it was never finished."""
        try:
            return State(**json.loads(self.state_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write_state(self, state: State) -> None:
        half = self.state_file.with_suffix(".new")
        half.write_text(json.dumps(asdict(state)), encoding="utf-8")
        half.replace(self.state_file)


def interpreter_fingerprint() -> str:
    """Changes when the environment must be made anew: another Python, or the checkout was moved."""
    return f"{sys.version} at {os.path.realpath(sys.base_prefix)} for {ROOT}"


def project_fingerprint() -> str:
    """Changes with the parts of ``pyproject.toml`` that decide what is installed and how."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    parts = [whole["project"], whole.get("build-system"), whole.get("tool", {}).get("hatch")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


# -- making it ------------------------------------------------------------------------


def prepare(environment: Environment, extra: str) -> None:
    """Make or refresh the environment unless it is ready; waits for another process that does.

    Raises:
        BootstrapError: It cannot be made. It is not taken as whole then.
    """
    if environment.is_ready(extra):
        return
    with _locked(environment):
        if environment.is_ready(extra):  # by the process that held the lock
            return
        state = environment.read_state()
        environment.state_file.unlink(missing_ok=True)
        if state is None or not environment.is_of_this_interpreter(state):
            create(environment)
            extras = [extra]
        else:
            extras = sorted({extra, *state.extras} & set(read_project()["optional-dependencies"]))
        install(environment, extras)
        environment.write_state(
            State(interpreter=interpreter_fingerprint(), project=project_fingerprint(), extras=extras)
        )


@contextlib.contextmanager
def _locked(environment: Environment) -> Iterator[None]:
    try:
        environment.path.parent.mkdir(exist_ok=True)
        lock = environment.path.with_suffix(".lock").open("a")
    except OSError as error:
        raise BootstrapError(
            f"cannot write to {environment.path.parent} ({error.strerror}); make the checkout writable, or use "
            f"{NO_VENV_OPTION} in an environment with the dependencies"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that makes {_shown(environment.path)}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        # pip inherits the lock: should this process be killed, nobody builds while pip still writes.
        os.set_inheritable(lock.fileno(), True)
        yield


def create(environment: Environment) -> None:
    """An empty environment with pip, in place of whatever is there."""
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise BootstrapError(_explain_missing(module))
    say(f"making the virtual environment {_shown(environment.path)}")
    try:
        shutil.rmtree(environment.path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise BootstrapError(
            f"cannot remove the unfinished {environment.path}: {error}; remove it"
        ) from error
    # The interpreter below an active environment: that one may be the one just removed.
    python = getattr(sys, "_base_executable", None) or sys.executable
    code, output = _run_logged([python, "-I", "-m", "venv", str(environment.path)], environment)
    if code != 0:
        raise BootstrapError(
            f"python -m venv ended with {code}:\n{_end_of(output)}\n{_explain_missing('venv')}"
        )


def _explain_missing(module: str) -> str:
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    return (
        f"This Python ({sys.executable}) needs its module {module!r} to make virtual environments.\n"
        f"On Debian and Ubuntu: apt-get install {package} (or python3-venv); elsewhere install a complete Python."
    )


def install(environment: Environment, extras: list[str]) -> None:
    """Install the checkout with its extras; shows what pip is at, keeps its whole output in a log."""
    say(f"installing django-belay[{','.join(extras)}]; this takes a minute or two, once")
    begin = time.monotonic()
    pip = [str(environment.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    options = ["--root-user-action=ignore", "--progress-bar=off", "--editable", f".[{','.join(extras)}]"]
    code, output = _run_logged([*pip, *options], environment)
    if code != 0:
        hint = ""
        if NETWORK_ERRORS.search(output):
            hint = (
                "\nThe package index could not be reached, or lacks a package: check the network, the proxy "
                "(HTTPS_PROXY) and pip's settings (PIP_INDEX_URL), then start again."
            )
        raise BootstrapError(
            f"pip ended with {code}; its whole output is in {environment.log}. It ends:\n{_end_of(output)}{hint}"
        )
    say(f"the environment is ready after {time.monotonic() - begin:.0f} s")


def _run_logged(command: list[str], environment: Environment) -> tuple[int, str]:
    """Run a command, telling from time to time what it prints."""
    lines: list[str] = []
    reported = time.monotonic()
    with (
        environment.log.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=_clean_environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            close_fds=False,  # it inherits the lock
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            lines.append(line)
            is_news = line.startswith(("Collecting", "Building", "Installing"))
            if is_news and (sys.stderr.isatty() or time.monotonic() - reported > REPORT_EVERY_S):
                reported = time.monotonic()
                _show_progress(line)
    if sys.stderr.isatty():
        _show_progress("")
    return process.returncode, "".join(lines)


def _show_progress(line: str) -> None:
    text = line.strip()[:70]
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K  {text}" if text else "\r\x1b[K")
        sys.stderr.flush()
    else:
        say(f"  {text}")


def _end_of(output: str, lines: int = 15) -> str:
    return "\n".join(output.strip().splitlines()[-lines:])


def _shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def say(message: str) -> None:
    sys.stderr.write(f"belay: {message}\n")
    sys.stderr.flush()


# -- without an environment of our own ------------------------------------------------


def require_distributions(extra: str) -> None:
    """Refuse to go on in the running environment if one of the extra's packages is missing.

    Raises:
        BootstrapError: With the names of what is missing.
    """
    missing = [name for name in distributions(extra) if not _is_installed(name)]
    if missing:
        raise BootstrapError(
            f"{NO_VENV_OPTION}: {sys.executable} lacks {', '.join(missing)}; pip install -e '.[{extra}]', "
            f"or leave out {NO_VENV_OPTION}"
        )


def distributions(extra: str) -> list[str]:
    """The names of the packages that the project with ``extra`` depends on directly."""
    project = read_project()
    optional = project["optional-dependencies"]
    if extra not in optional:
        raise BootstrapError(f"pyproject.toml has no extra {extra!r}; it has {', '.join(optional)}")
    names: set[str] = set()
    requirements = [*project["dependencies"], *optional[extra]]
    while requirements:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirements.pop()).groups("")  # type: ignore[union-attr]
        if name == project["name"]:
            requirements += [nested for own in extras.split(",") for nested in optional[own]]
        else:
            names.add(name)
    return sorted(names)


def read_project() -> dict[str, Any]:
    """The table ``project`` of ``pyproject.toml``."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def main(arguments: list[str]) -> None:
    """Set up for the named extra (``dev`` by default) and print the interpreter's path."""
    extra = arguments[0] if arguments else "dev"
    environment = Environment.of_this_interpreter()
    try:
        distributions(extra)  # refuses an unknown extra, which pip only warns about
        prepare(environment, extra)
    except BootstrapError as error:
        sys.exit(f"{error}")
    sys.stdout.write(f"{environment.python}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
