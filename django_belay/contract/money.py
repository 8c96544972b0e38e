"""Money is integer micro-dollars inside, ``Decimal`` at the edge (§2)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from django_belay.contract.job import MICROS_PER_DOLLAR

Dollars = Decimal | int | str

_MAX_BIGINT = 2**63 - 1


def to_micros(usd: Dollars) -> int:
    """Dollars as integer micro-dollars.

    Raises:
        ValueError: Not a number, negative, finer than a micro-dollar, or beyond bigint.
            A ``float`` is refused too: 0.1 has no exact value.
    """
    if isinstance(usd, float | bool):
        raise ValueError(
            f"usd={usd!r}: pass a Decimal, an int or a string such as '0.02', not a {type(usd).__name__}"
        )
    try:
        micros = Decimal(usd) * MICROS_PER_DOLLAR
    except (InvalidOperation, TypeError) as error:
        raise ValueError(f"usd={usd!r} is not a number") from error
    if not micros.is_finite() or micros != micros.to_integral_value():
        raise ValueError(f"usd={usd!r}: amounts are whole micro-dollars, at most six decimal places")
    if not 0 <= micros <= _MAX_BIGINT:
        raise ValueError(f"usd={usd!r}: an amount is from 0 to {_MAX_BIGINT // MICROS_PER_DOLLAR}")
    return int(micros)


def to_dollars(micros: int) -> Decimal:
    """Integer micro-dollars as dollars."""
    return Decimal(micros) / MICROS_PER_DOLLAR


@dataclass(slots=True, kw_only=True, frozen=True)
class Cost:
    """The price of one step: dollars and tokens."""

    usd: Dollars = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        to_micros(self.usd)
        _check_tokens(self.tokens)

    @property
    def usd_micros(self) -> int:
        """The dollars in micro-dollars."""
        return to_micros(self.usd)


@dataclass(slots=True, kw_only=True, frozen=True)
class Budget:
    """What a job's steps may spend; ``None`` is no limit (§8.2)."""

    usd: Dollars | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.usd is not None:
            to_micros(self.usd)
        if self.tokens is not None:
            _check_tokens(self.tokens)

    @property
    def usd_micros(self) -> int | None:
        """The dollars in micro-dollars."""
        return None if self.usd is None else to_micros(self.usd)


def _check_tokens(tokens: int) -> None:
    if type(tokens) is not int or not 0 <= tokens <= _MAX_BIGINT:
        raise ValueError(f"tokens={tokens!r}: a whole number from 0 to {_MAX_BIGINT}")
