"""A bounded coverage-guided run over the decoders, seeded with the committed fixtures."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .fixtures import PAYLOADS, by_name

ROOT = Path(__file__).resolve().parents[3]
SECONDS = os.environ.get("BELAY_FUZZ_SECONDS", "3")

if importlib.util.find_spec("atheris") is None:
    pytest.skip("atheris is not installed: pip install atheris", allow_module_level=True)


def seeds(decoder: str) -> list[bytes]:
    names = by_name()
    if decoder == "value":
        return [
            payload for kind, schema, payload in PAYLOADS.values() if (kind, schema) not in {(7, 1), (8, 1)}
        ]
    if decoder == "events":
        return [bytes([number]) + payload for number in range(26) for _, _, payload in PAYLOADS.values()]
    if decoder in ("record", "segment"):
        return [data for name, data in names.items() if name.startswith(("segment", "event"))]
    body = names["metadata-manifest-later"]
    return [body, body[12:-4], names["metadata-current"][:-4], names["metadata-marker"][:-4]]


@pytest.mark.parametrize(
    "decoder", ["record", "segment", "value", "events", "current", "manifest", "marker", "catalog"]
)
def test_decoder_refuses_or_gives_the_same_bytes(decoder: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, data in enumerate(seeds(decoder)):
        (corpus / str(number)).write_bytes(data)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "soak.bench.journal_fuzz",
            decoder,
            f"-max_total_time={SECONDS}",
            "-timeout=5",
            str(corpus),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
