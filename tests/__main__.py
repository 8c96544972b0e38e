"""``python3 -m tests [pytest arguments]``: the tests, on a machine that has only Python.

Sets up a virtual environment first, if need be (``--no-venv`` uses the running one), and brings its own
PostgreSQL (``--postgres=url|container|embedded`` says which). Runs on up to four processes, each with a server of its
own; ``-n 0`` runs in one.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - old interpreters are who this message is for
    sys.exit(
        "django-belay needs Python 3.11 or newer; this is {}.{} ({})".format(
            *sys.version_info[:2], sys.executable
        )
    )


def main() -> None:
    from example_project import bootstrap

    arguments = bootstrap.enter("test", module="tests", arguments=sys.argv[1:])

    import pytest

    sys.exit(pytest.main([*in_parallel(arguments), *arguments]))


def in_parallel(arguments: "list[str]") -> "list[str]":
    """Options that spread the tests over processes, unless the arguments decide that themselves."""
    if any(argument.startswith(("-n", "--numprocesses", "--pdb")) for argument in arguments):
        return []
    # Tests wait more than they compute, and the slow ones stand together: who is done takes some over.
    return ["-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"]


if __name__ == "__main__":
    main()
