"""``manage.py belay_decode``: what a stored step value or job result holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from django_belay.contract.envelope import EnvelopeError, Opaque, decode, is_etf
from django_belay.contract.etf import DEFAULT_LIMITS


class Command(BaseCommand):
    """Shows one envelope value: its JSON view, that it is opaque, or why it is refused."""

    help = (
        "Show a stored step value or job result: its JSON view, or that it has none (with its "
        "bytes), or why it is refused (exit status 1). Reads FILE, --hex, or standard input."
    )
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        source = parser.add_mutually_exclusive_group()
        source.add_argument("file", nargs="?", help="File with the value's bytes; '-' is standard input.")
        source.add_argument("--hex", help=r"The bytes in hexadecimal, as psql prints them (\x83…) or bare.")
        parser.add_argument("--format", choices=["text", "json"], default="text")

    def handle(self, *args: Any, **options: Any) -> None:
        data = _read(options["file"], options["hex"])
        try:
            value = decode(data)
        except EnvelopeError as error:
            self._refuse(data, error, as_json=options["format"] == "json")
        report = _report(data, value)
        self.stdout.write(_compact(report) if options["format"] == "json" else _text(report))

    def _refuse(self, data: bytes, error: EnvelopeError, *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(_compact({"encoding": _encoding(data), "refused": str(error)}))
        raise CommandError(_("refused: %(reason)s") % {"reason": error})


def _read(file: str | None, hexadecimal: str | None) -> bytes:
    if hexadecimal is not None:
        return _from_hex(hexadecimal)
    most = DEFAULT_LIMITS.max_bytes + 1  # one more shows that it is too long
    if file is None or file == "-":
        return sys.stdin.buffer.read(most)
    try:
        with Path(file).open("rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise CommandError(
            _("cannot read %(file)s: %(reason)s") % {"file": file, "reason": error.strerror}
        ) from error


def _from_hex(text: str) -> bytes:
    digits = text.strip().removeprefix("\\x").removeprefix("0x")
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise CommandError(_("--hex takes pairs of hexadecimal digits, such as 836101")) from None


def _encoding(data: bytes) -> str:
    return "etf" if is_etf(data) else "json"


def _report(data: bytes, value: Any) -> dict[str, Any]:
    if isinstance(value, Opaque):
        facts = {"reason": value.reason, "bytes": len(value.data), "hex": value.data.hex()}
        return {"encoding": _encoding(data), "opaque": facts}
    return {"encoding": _encoding(data), "value": value}


def _text(report: dict[str, Any]) -> str:
    if "opaque" in report:
        return str(_("opaque, %(bytes)d bytes: %(reason)s\n%(hex)s") % report["opaque"])
    return json.dumps(report["value"], ensure_ascii=False, indent=2)


def _compact(report: dict[str, Any]) -> str:
    return json.dumps(report, ensure_ascii=False)
