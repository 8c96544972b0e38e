"""``python3 -m example_project COMMAND``: any command of the example project's ``manage.py``.

Sets up a virtual environment first, if need be (``--no-venv`` uses the running one), and brings a
PostgreSQL (``--postgres=url|container|embedded`` says which). An embedded one keeps its data for the next
command: look at what ``demo`` made with ``runserver``.
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

    arguments = bootstrap.enter("demo", module="example_project", arguments=sys.argv[1:])
    force, arguments = take_option(arguments, "--postgres")
    # What runserver starts anew for each change gets the server from DATABASE_URL, not from the option.
    sys.argv[1:] = arguments
    run_command(arguments, force=force, keep_as=str(bootstrap.ROOT))


def take_option(arguments: "list[str]", name: str) -> "tuple[str | None, list[str]]":
    """The value of ``name=value`` or ``name value``, and the arguments without it."""
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2], arguments[:index] + arguments[index + 1 :]
        if argument == name:
            return "".join(arguments[index + 1 : index + 2]), arguments[:index] + arguments[index + 2 :]
    return None, arguments


def run_command(arguments: "list[str]", *, force: "str | None", keep_as: str) -> None:
    import os
    import signal

    from django.core.management import execute_from_command_line

    from django_belay.testing.postgres import PostgresNotFound, find_postgres

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    # Asked to end, the command ends what it has started: workers, and the server below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
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
        try:
            execute_from_command_line(["example_project", *arguments])
        except KeyboardInterrupt:
            sys.exit(130)  # as a shell says it; the server ends with the block


if __name__ == "__main__":
    main()
