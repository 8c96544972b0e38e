"""The envelope of step values and job results.

The first byte tells the encoding: 131 is the Erlang external term format, which only the
Elixir SDK writes; anything else is UTF-8 JSON, which this SDK writes.

Contract: §2.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from django_belay.contract import etf
from django_belay.contract.etf import DEFAULT_LIMITS, Limits
from django_belay.contract.json_form import json_form
from django_belay.contract.json_value import MAX_DEPTH, JsonError, Rules, dump_with, loads
from django_belay.exceptions import BelayError, StepTooLarge

#: Ceiling of an encoded step value (§2); ``BELAY["MAX_STEP_BYTES"]`` can only lower it.
MAX_STEP_BYTES = 1_048_576

_RULES = Rules.envelope(max_depth=MAX_DEPTH, convert=json_form)
_PREVIEW_BYTES = 16


class EnvelopeError(BelayError, ValueError):
    """A value that no envelope can carry, or bytes that are no envelope we would read."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """A stored value without a JSON view, such as a process id of Erlang.

    Attributes:
        data: The bytes as they are stored.
        reason: Why there is no JSON view.
    """

    data: bytes
    reason: str

    @property
    def preview(self) -> str:
        """The first bytes in hexadecimal."""
        shown = self.data[:_PREVIEW_BYTES].hex(" ")
        return shown + " …" if len(self.data) > _PREVIEW_BYTES else shown

    def as_json(self) -> dict[str, Any]:
        """The value for reports: ``{"$opaque": {"reason", "bytes", "base64"}}``."""
        encoded = base64.b64encode(self.data).decode()
        return {"$opaque": {"reason": self.reason, "bytes": len(self.data), "base64": encoded}}

    def __str__(self) -> str:
        return f"<opaque, {len(self.data):,} bytes: {self.reason}; {self.preview}>"

    __repr__ = __str__


def encode(value: Any, *, limit: int | None = None) -> bytes:
    """Encode a step's value or a job's result.

    Besides JSON it takes datetime, date, time, timedelta, UUID, Decimal, Enum,
    dataclasses and sets, in the forms of :mod:`~django_belay.contract.json_form`. Tuples
    become arrays. Whoever decodes the bytes gets these forms, not the Python types.

    Args:
        limit: Bytes allowed, for step values; job results have no ceiling.

    Returns:
        Compact UTF-8 JSON; the first byte is never 131.

    Raises:
        EnvelopeError: The value is not JSON (NaN, a lone surrogate, keys that are not
            text, another type) or is nested deeper than 250 levels.
        StepTooLarge: The bytes are more than ``limit``.

    Contract: §2.
    """
    try:
        data = dump_with(value, _RULES)
    except JsonError as error:
        raise EnvelopeError(f"value{error.short_path}: {error.message}") from None
    if limit is not None and len(data) > limit:
        raise StepTooLarge(
            f"the step's value takes {len(data):,} bytes encoded, {limit:,} are allowed (MAX_STEP_BYTES); "
            "store the data elsewhere and return a reference to it"
        )
    return data


def is_etf(data: bytes | memoryview) -> bool:
    """Whether the bytes claim to be in the Erlang external term format."""
    return len(data) > 0 and data[0] == etf.VERSION


def decode(data: bytes | memoryview | None, *, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Decode what any SDK stored as a step's value or a job's result.

    Args:
        data: The column's bytes; ``None`` is a result that was never written.
        limits: Bounds on size, depth and elements.

    Returns:
        A JSON value (``None`` for NULL), or an :class:`Opaque` for a valid Erlang term
        that has no JSON view.

    Raises:
        EnvelopeError: The bytes are broken or over the limits; time and memory spent
            are bounded.

    Contract: §2.
    """
    if data is None:
        return None
    raw = bytes(data)
    if not raw:
        raise EnvelopeError("no bytes at all; an envelope has at least one")
    if len(raw) > limits.max_bytes:
        raise EnvelopeError(f"{len(raw):,} bytes; at most {limits.max_bytes:,} are read")
    try:
        return etf.loads(raw, limits=limits) if is_etf(raw) else loads(raw, max_depth=limits.max_depth)
    except etf.NoJsonView as error:
        return Opaque(raw, str(error))
    except (etf.EtfError, JsonError) as error:
        raise EnvelopeError(str(error)) from None


def decode_or_opaque(data: bytes | memoryview | None, *, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Decode for display: what :func:`decode` refuses comes as an :class:`Opaque` too.

    Contract: §2.
    """
    try:
        return decode(data, limits=limits)
    except EnvelopeError as error:
        return Opaque(b"" if data is None else bytes(data), f"refused: {error}")
