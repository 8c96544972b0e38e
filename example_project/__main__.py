"""``python3 -m example_project COMMAND``: any command of the example project's ``manage.py``.

Sets up a virtual environment first, if need be (``--no-venv`` uses the running one).

``--storage journal`` keeps everything in files below ``example_project/var``, SQLite and a journal of
jobs; so it is where ``DATABASE_URL`` is not set. ``--storage postgres`` brings a PostgreSQL
(``--postgres=url|container|embedded`` says which). Both keep their data for the next command: look at what
``demo`` made with ``runserver``.
"""

import os
import signal
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - old interpreters are who this message is for
    sys.exit(
        "django-belay needs Python 3.11 or newer; this is {}.{} ({})".format(
            *sys.version_info[:2], sys.executable
        )
    )

STORAGES = ("journal", "postgres")


def main() -> None:
    from example_project import bootstrap

    arguments = bootstrap.enter("demo", module="example_project", arguments=sys.argv[1:])
    force, arguments = take_option(arguments, "--postgres")
    storage, arguments = take_option(arguments, "--storage")
    storage = storage or ("postgres" if force or os.environ.get("DATABASE_URL") else "journal")
    if storage not in STORAGES:
        sys.exit(f"--storage {storage}: it is one of {', '.join(STORAGES)}")
    if storage == "journal" and force:
        sys.exit(
            f"--postgres={force} brings a PostgreSQL, which --storage journal does not use: leave out one"
        )
    # What runserver starts anew for each change gets the server from DATABASE_URL, not from the option.
    sys.argv[1:] = arguments
    if storage == "journal":
        os.environ.pop("DATABASE_URL", None)
        run_command(arguments)
    else:
        run_on_postgres(arguments, force=force, keep_as=str(bootstrap.ROOT))


def take_option(arguments: "list[str]", name: str) -> "tuple[str | None, list[str]]":
    """The value of ``name=value`` or ``name value``, and the arguments without it."""
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2], arguments[:index] + arguments[index + 1 :]
        if argument == name:
            return "".join(arguments[index + 1 : index + 2]), arguments[:index] + arguments[index + 2 :]
    return None, arguments


def run_on_postgres(arguments: "list[str]", *, force: "str | None", keep_as: str) -> None:
    from django_belay.testing.postgres import PostgresNotFound, find_postgres

    try:
        server = find_postgres(force, keep_as=keep_as)
    except PostgresNotFound as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    with server:
        os.environ["DATABASE_URL"] = server.url  # the settings read it, and so do the workers
        if server.source == "container":
            sys.stderr.write(
                "belay: the container's data end with this command; "
                "use --postgres=embedded or DATABASE_URL to keep them for the next one\n"
            )
        run_command(arguments)


def run_command(arguments: "list[str]") -> None:
    from django.core.management import execute_from_command_line

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    # Asked to end, the command ends what it has started: workers, and a server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        execute_from_command_line(["example_project", *arguments])
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell says it; a server ends with its block


if __name__ == "__main__":
    main()
