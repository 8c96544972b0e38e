"""Errors between processes: by name out of a closed table, with their text and attributes."""

from __future__ import annotations

from typing import Any, Final

from django_belay import exceptions
from django_belay.exceptions import BelayError, StorageError
from django_belay.storage.base import AckGroupError, AckResult

from .codec import form_of

_NAMES: Final = (
    "ConfigurationError", "Conflict", "Contended", "ContractTooNew", "CorruptRecord", "EnqueueError",
    "InvalidCron", "InvalidInput", "InvalidQueue", "InvalidWorkflow", "JobNotFound", "JournalError",
    "JournalFull", "JournalLocked", "NotSupportedByProfile", "PayloadErased", "PayloadTooLarge", "SchemaError",
    "SchemaMissing", "SchemaTooOld", "StorageError", "Unavailable", "UnknownKind", "UnsupportedFormat",
    "WorkflowNotFound",
)  # fmt: skip
_CLASSES: Final[dict[str, type[BelayError]]] = {name: getattr(exceptions, name) for name in _NAMES}
_RESULTS: Final = form_of(list[AckResult | None], where="AckGroupError.results")
_GROUP: Final = "AckGroupError"
_SCALARS: Final = (str, int, float, bool, type(None))


def encode_error(error: Exception) -> list[Any]:
    """Name, text and attributes. An error that no table knows becomes a ``StorageError`` that names it."""
    if isinstance(error, AckGroupError):
        failures = [[index, encode_error(failure)] for index, failure in error.failures.items()]
        return [_GROUP, str(error), {"results": _RESULTS.to_json(error.results), "failures": failures}]
    name = type(error).__name__
    if _CLASSES.get(name) is not type(error):
        return ["StorageError", f"the journal's owner failed: {name}: {error!s:.2000}", {}]
    return [name, str(error), {key: _plain(value) for key, value in vars(error).items()}]


def _plain(value: object) -> Any:
    """An attribute as JSON: what it cannot hold is told in words."""
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value if isinstance(value, _SCALARS) else repr(value)


def decode_error(found: Any) -> Exception:
    """The error, to be raised here."""
    match found:
        case [str(name), str(text), dict(attributes)] if name in _CLASSES:
            return _rebuilt(_CLASSES[name], text, attributes)
        case [str(name), str(), {"results": results, "failures": list(failures)}] if name == _GROUP:
            try:
                return AckGroupError(
                    _RESULTS.of_json(results),
                    {int(index): decode_error(failure) for index, failure in failures},
                )
            except (TypeError, ValueError):  # Unreadable is one
                pass
    return StorageError("the journal's owner answered with an error that this version does not know")


def _rebuilt(cls: type[BelayError], text: str, attributes: dict[str, Any]) -> BelayError:
    """The same class, text and attributes; constructors build their texts from other arguments."""
    error = cls.__new__(cls)
    error.args = (text,)
    for key, value in attributes.items():
        setattr(error, key, tuple(value) if key == "details" and isinstance(value, list) else value)
    return error
