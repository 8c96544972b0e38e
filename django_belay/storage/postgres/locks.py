"""The advisory locks of a transition, in the one order that everybody keeps (rule 19)."""

from __future__ import annotations

from collections.abc import Iterable

from django_belay.contract import names
from django_belay.storage.postgres.session import Transaction

_WORKFLOW, _SCOPE = 1, 2


def lock(transaction: Transaction, *, workflows: Iterable[str] = (), scopes: Iterable[str] = ()) -> None:
    """Lock workflows, then signal scopes, each class by ascending hash, to the transaction's end.

    Whoever calls twice in a transaction names all workflows first and all scopes then;
    job rows are locked after both.

    Contract: §7, §8.1; rules 19, 20.
    """
    keys = {(_WORKFLOW, names.workflow_lock(workflow)) for workflow in workflows}
    keys |= {(_SCOPE, names.scope_lock(scope)) for scope in scopes}
    if keys:
        transaction.run(
            "lock_names", {"classes": [key[0] for key in keys], "names": [key[1] for key in keys]}
        )
