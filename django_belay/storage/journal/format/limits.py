"""Bounds of the format, and the budgets a reader may set below them (spec H)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .refusal import refuse

MAX_U64: Final = 2**64 - 1
MAX_TIME: Final = 2**63 - 1
MAX_PAYLOAD_BYTES: Final = 16_777_216
MAX_MANIFEST_BYTES: Final = 16_777_216
MAX_SEALED_BYTES: Final = 1_073_741_824
MAX_ACTIVE_BYTES: Final = 1_073_741_760
MAX_SEGMENT_RECORDS: Final = 38_347_918
MAX_ATTEMPTS: Final = 65_535
MAX_TIMEOUT_MS: Final = 86_400_000
MAX_KEY_BYTES: Final = 255
MAX_NAME_BYTES: Final = 128
MAX_INSERT_ARGS_BYTES: Final = 262_144
# Decoding recurses once a level; this keeps the deepest budget inside the interpreter's stack.
MAX_DEPTH_BUDGET: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLimits:
    """What one Value may cost its reader or writer."""

    depth: int = 64
    nodes: int = 100_000
    binary_bytes: int = 16_777_216
    encoded_bytes: int = 16_777_216

    def __post_init__(self) -> None:
        fits = (
            0 < self.depth <= MAX_DEPTH_BUDGET
            and self.nodes > 0
            and self.binary_bytes >= 0
            and self.encoded_bytes >= 0
        )
        if not fits:
            raise refuse("argument", "invalid_options", "value limits")


READING: Final = ValueLimits()
INSERTING: Final = ValueLimits(depth=32, nodes=10_000, encoded_bytes=1_048_576)
