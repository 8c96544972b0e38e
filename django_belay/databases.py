"""For ``settings.py``: the database that the journal's inspection index is read through.

Imports nothing of Django's, so that settings may import it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ENGINE: Final = "django_belay.inspection"
ALIAS: Final = "belay"
ROUTER: Final = "django_belay.routers.BelayRouter"
INDEX: Final = "index.sqlite3"


def with_belay_index(
    databases: Mapping[str, dict[str, Any]], directory: str | os.PathLike[str], *, alias: str = ALIAS
) -> dict[str, dict[str, Any]]:
    """``DATABASES`` with the journal's inspection index, to read the models of belay from::

        BELAY_DIRECTORY = BASE_DIR / "var/belay"
        DATABASES = with_belay_index(DATABASES, BELAY_DIRECTORY)
        DATABASE_ROUTERS = ["django_belay.routers.BelayRouter"]

    Args:
        directory: The ``directory`` of the journal's options.
        alias: Its ``index_database``.

    Raises:
        ValueError: Another database has the alias.
    """
    if alias in databases and databases[alias].get("ENGINE") != ENGINE:
        raise ValueError(
            f"DATABASES has another database {alias!r}; choose a name for the journal's index with alias=, "
            'and give it as BELAY["STORAGE"]["OPTIONS"]["index_database"]'
        )
    index = {
        "ENGINE": ENGINE,
        "NAME": str(Path(directory) / INDEX),
        "CONN_MAX_AGE": 0,
        "TEST": {"DEPENDENCIES": [], "MIGRATE": False},
    }
    return {**databases, alias: index}
