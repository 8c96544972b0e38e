"""The storage's SQL: one statement a file under ``sql/``, read once."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from importlib.resources import files

from django_belay.contract.job import Job

JOB_COLUMNS = tuple(field.name for field in fields(Job))

# Stands in a statement where every column of belay_jobs AS j is wanted, in the order
# of the Job record; a statement never depends on the table's own column order (§1).
_JOB = "{job}"
_JOB_COLUMNS_SQL = ", ".join(f"j.{name}" for name in JOB_COLUMNS)
# ``{errors}`` stands for the expression in ``sql/_errors.sql``, and so on.
_INCLUDES = ("errors", "channel", "waiters", "newer", "wake", "dep_keys")


@cache
def statement(name: str) -> str:
    """The text of ``sql/<name>.sql`` with ``{job}`` and the shared expressions spelled out."""
    text = _read(name).replace(_JOB, _JOB_COLUMNS_SQL)
    for include in _INCLUDES:
        text = text.replace(f"{{{include}}}", _expression(f"_{include}"))
    return text


def _expression(name: str) -> str:
    """A shared expression without the comments above it."""
    lines = _read(name).splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


@cache
def is_unprepared(name: str) -> bool:
    """Whether the statement's header says ``-- unprepared``.

    Its plan depends on a LIMIT or on the backlog: a prepared statement may get a generic
    plan, which guesses a tenth of the table where a parameter says a hundred rows.
    """
    return "\n-- unprepared\n" in _read(name)


def _read(name: str) -> str:
    return files("django_belay.storage.postgres").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
