"""Every refusal has a test that names it, and every name of the specification has a refusal or a reason.

The names are taken from the source: a new refusal fails here until a test asserts it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_belay.storage import journal
from django_belay.storage.journal.format.refusal import refuse

PACKAGE = Path(journal.__path__[0])
TESTS = Path(__file__).resolve().parents[2]
# The function that builds a refusal, and which of its arguments is the leaf name.
BUILDERS = {"refuse": 1, "_corrupt": 0}

KINDS = (
    "argument", "ownership_busy", "ownership_unavailable", "initialization_required", "discovery",
    "incomplete_tail", "physical_corruption", "continuity", "unsupported_physical", "unsupported_semantics",
    "invalid_payload", "consumer_rejected", "resource_limit", "changed_view", "io", "uncertain_activation",
)  # fmt: skip
WRITER = (
    "sequence_exhausted", "segment_id_exhausted", "poisoned", "mutation_not_admitted", "successor_mismatch",
    "writer_state_mismatch",
)  # fmt: skip
COMPACTION = (
    "compaction_not_admitted", "compaction_cancelled", "compaction_deadline", "candidate_limit",
    "insufficient_headroom", "candidate_mismatch", "renamed_candidate_mismatch",
    "published_candidate_mismatch", "source_current_changed", "source_segments_missing",
    "unknown_publication_outcome", "online_delta_too_large", "availability_frontier", "terminal_retention",
    "retention_timestamp_unavailable",
)  # fmt: skip
# Names of spec J that nothing here raises, and what stands for them.
NOT_RAISED = {
    "callback": "a decoder's internal fault is a bug and stays the exception it is",
    "already_sealed": "no caller can ask for a seal: rotation is the writer's own",
    "empty_segment": "an empty segment never rotates",
    "uncertain": "an uncertain write poisons: poisoned",
    "unsealed_source": "the tail is sealed before a build begins",
    "source_frontier_changed": "the frontier is held by the owner alone; a changed pointer is source_current_changed",
    "source_identity_changed": "recheck says path_or_extent_changed",
    "online_delta_record": "a record that does not fit is candidate_mismatch",
}


def raised_names() -> dict[str, str]:
    """Leaf names in the source, and where."""
    return {name: path.name for path in PACKAGE.rglob("*.py") for name in _names(ast.parse(path.read_text()))}


def _names(tree: ast.AST) -> Iterator[str]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        at = BUILDERS.get(getattr(call.func, "id", ""))
        if at is None or len(call.args) <= at:
            continue
        for part in ast.walk(call.args[at]):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def test_every_refusal_is_named_by_a_test() -> None:
    texts = [path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    untested = {
        name: file for name, file in raised_names().items() if not any(f'"{name}"' in text for text in texts)
    }
    assert untested == {}


@pytest.mark.parametrize("name", [*WRITER, *COMPACTION])
def test_names_of_the_specification_are_raised(name: str) -> None:
    """As a constant: some are handed on before they are raised."""
    assert any(f'"{name}"' in path.read_text() for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("name", sorted(NOT_RAISED))
def test_names_without_a_refusal_have_a_reason_that_still_holds(name: str) -> None:
    assert name not in raised_names()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_an_operator_can_do(kind: str) -> None:
    message = str(refuse(kind, "some_name"))
    assert message.startswith("some_name: ")
    assert len(message) > len("some_name: ") + 10
