"""Reading nested settings: every value is checked, every finding knows its path and the mend.

Used by :mod:`django_belay.conf`; nothing here raises for a bad value: the default
stands in for it and a :class:`Problem` is noted, so that one check run reports all.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

#: A year; longer cadences and leases are surely a mistake in the unit.
MAX_SECONDS = 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding: ``path`` is the key's, such as ``BELAY["QUEUES"]["mail"]["limit"]``."""

    code: str
    path: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}. {self.hint}"


def nearest(name: object, known: Collection[str]) -> str:
    """The known names to offer for a misspelt one, as the start of a hint."""
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    if not near and isinstance(name, str):
        near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.5)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Known here: {', '.join(sorted(known))}."


@dataclass(slots=True)
class Section:
    """One mapping of the settings while it is read."""

    path: str
    values: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def root(cls, values: object) -> Section:
        """The ``BELAY`` setting itself."""
        section = cls("BELAY", {})
        section.values = section._mapping("BELAY", values, code="E001")
        return section

    def at(self, key: object) -> str:
        """The path of a key in here."""
        return f"{self.path}[{key!r}]" if not isinstance(key, str) else f'{self.path}["{key}"]'

    def section(self, key: str) -> Section:
        """The mapping under ``key``, empty where there is none."""
        path = self.at(key)
        return Section(path, self._mapping(path, self.values.get(key, {})), self.problems)

    def below(self, key: str, value: object) -> Section:
        """A mapping that stands under ``key``."""
        path = self.at(key)
        return Section(path, self._mapping(path, value), self.problems)

    def refuse(self, key: object, message: str, hint: str, *, code: str = "E003") -> None:
        """Note a finding about the value under ``key``."""
        self.problems.append(Problem(code=code, path=self.at(key), message=message, hint=hint))

    def only(self, known: Collection[str], *, code: str = "E002") -> None:
        """Refuse every key but the known ones."""
        for key in self.values:
            if key not in known:
                self.refuse(key, "is no known key", f"{nearest(key, known)} Remove it otherwise.", code=code)

    def _mapping(self, path: str, value: object, code: str = "E003") -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return value
        self.problems.append(
            Problem(
                code=code,
                path=path,
                message=f"is a {type(value).__name__}",
                hint="Make it a dictionary, or remove it.",
            )
        )
        return {}

    # -- values ------------------------------------------------------------------

    def integer(self, key: str, default: int, *, least: int = 1, most: int = 2**31 - 1) -> int:
        """A whole number in a range."""
        found = self.optional_integer(key, least=least, most=most, default=default)
        return default if found is None else found

    def optional_integer(
        self, key: str, *, least: int = 1, most: int = 2**31 - 1, default: int | None = None
    ) -> int | None:
        """A whole number in a range, or ``None``."""
        value = self.values.get(key, default)
        if value is None and default is None:
            return None
        if type(value) is int and least <= value <= most:
            return value
        self.refuse(key, f"is {value!r}", f"Give a whole number from {least} to {most:,}.")
        return default

    def seconds(self, key: str, default: float, *, least: float = 0.0) -> float:
        """A duration in seconds; a ``timedelta`` is taken too."""
        value = self.values.get(key, default)
        found = as_seconds(value)
        if found is not None and least <= found <= MAX_SECONDS:
            return found
        self.refuse(
            key,
            f"is {value!r}",
            f"Give seconds (a number of at least {least:g}) or a timedelta, at most a year.",
        )
        return default

    def flag(self, key: str, default: bool) -> bool:
        """``True`` or ``False``."""
        value = self.values.get(key, default)
        if isinstance(value, bool):
            return value
        self.refuse(key, f"is {value!r}", "Give True or False.")
        return default

    def choice(self, key: str, default: str, allowed: Collection[str]) -> Any:
        """One of some texts."""
        value = self.values.get(key, default)
        if isinstance(value, str) and value in allowed:
            return value
        self.refuse(key, f"is {value!r}", f"Give one of {', '.join(map(repr, allowed))}.")
        return default

    def text(self, key: str, default: str) -> str:
        """A text that is not empty."""
        found = self.optional_text(key, default)
        return default if found is None else found

    def optional_text(self, key: str, default: str | None = None) -> str | None:
        """A text that is not empty, or ``None``."""
        value = self.values.get(key, default)
        if value is None and default is None:
            return None
        if isinstance(value, str) and value and "\0" not in value:
            return value
        self.refuse(key, f"is {value!r}", "Give a text that is not empty.")
        return default


def as_seconds(value: object) -> float | None:
    """Seconds of a number or ``timedelta``; ``None`` for anything else."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
