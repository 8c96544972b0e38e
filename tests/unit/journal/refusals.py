"""Asserting a refusal by its leaf name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_belay.exceptions import JournalError


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> JournalError:
    """The refusal a call raises."""
    with pytest.raises(JournalError) as caught:
        call(*args, **kwargs)
    return caught.value


def reason(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The leaf name of the refusal a call raises."""
    return refused(call, *args, **kwargs).refusal
