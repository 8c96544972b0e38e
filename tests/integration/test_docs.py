"""The documentation does what it says: pages made from code are current, the tutorial runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from django_belay import conf
from django_belay.registry import JobOptions
from django_belay.testing.postgres import PostgresServer
from docs import generate
from tests.integration import examples
from tests.integration.tutorial import Block, Tutorial, blocks, matches

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("page", sorted(generate.PAGES))
def test_page_made_from_code_is_current(page: str) -> None:
    assert (DOCS / "reference" / page).read_text(encoding="utf-8") == generate.PAGES[page](), (
        "run: python -m docs.generate"
    )


def _table_keys(heading: str) -> list[str]:
    text = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    section = re.split(r"^#{1,2} ", text.partition(f"{heading}\n")[2], maxsplit=1, flags=re.M)[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.M)


def test_settings_page_names_every_key() -> None:
    assert sorted(_table_keys("# Settings")) == sorted(conf.KEYS)


def test_settings_page_names_every_option_of_the_postgres_storage() -> None:
    assert sorted(_table_keys("## Options of the PostgreSQL storage")) == sorted(
        conf.PostgresOptions.__slots__
    )


def test_settings_page_names_every_option_of_the_journal_storage() -> None:
    assert sorted(_table_keys("## Options of the journal storage")) == sorted(conf.JournalOptions.__slots__)


def test_settings_page_names_every_option_of_a_job() -> None:
    assert sorted(_table_keys("## Options of a job")) == sorted({*JobOptions.__slots__, "kind", "aliases"})


def test_every_link_between_pages_leads_somewhere() -> None:
    root = DOCS.parent
    dead = [
        f"{page.relative_to(root)}: {target}"
        for page in [*root.glob("*.md"), *DOCS.rglob("*.md"), *(root / "soak").rglob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert dead == []


PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_of_the_page_fit_the_code(page: Path) -> None:
    assert examples.faults(page) == []


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("```python\nclient.signal(1, …)\n```", "does not compile: invalid character"),
        ("```python\nreturn 1\n```", "does not compile: 'return' outside function"),
        ("```python\nfrom django_belay import jobs_of\n```", "django_belay has no jobs_of"),
        ("```python\nclient.signal(1, 'go')\n```", "client is not imported in any block of the page"),
        ("```python\nos.getpid()\n```", "os is not imported in any block of the page"),
        (
            "```python\nfrom django_belay import client\n```\n```python\nclient.sign(1)\n```",
            "client.sign: there is no sign",
        ),
        (
            "```python\nfrom django_belay import client\nclient.signal(1, 'go', load=2)\n```",
            "client.signal(1, 'go', load=2): got an unexpected keyword argument 'load'",
        ),
        ("```python\nctx.wait('go')\n```", "ctx.wait: there is no wait"),
        ("```python\nctx.sleep(60)\n```", "ctx.sleep(60): missing a required argument: 'seconds'"),
        ("```python\nhandle.status\nhandle.stop()\n```", "handle.stop: there is no stop"),
        (
            "```python\nfrom django_belay import job\n@job(tries=3)\ndef a(): ...\n```",
            "tries is no option of a job",
        ),
        ("```python\nsend.using(tries=3)\n```", "tries is no option of a job"),
        ("```python\nBELAY = {'QUEUE': 3}\n```", "QUEUE"),
        ("```console\n$ manage.py belay_queue stop ai\n```", "invalid choice: 'stop'"),
        ("```sh\nls | xargs python manage.py belay_replay --fast\n```", "unrecognized arguments: --fast"),
    ],
)
def test_a_block_that_does_not_fit_is_noticed(tmp_path: Path, block: str, fault: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{block}\n", encoding="utf-8")
    found = examples.faults(page)
    assert len(found) == 1
    assert fault in found[0]


@pytest.fixture
def tutorial_database(postgres_server: PostgresServer) -> Iterator[dict[str, str]]:
    """PostgreSQL's own variables for an empty database."""
    name = f"belay_tutorial_{uuid4().hex[:8]}"
    found = postgres_server.parameters
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield {
            "PGDATABASE": name,
            **{
                f"PG{key.upper()}": found[key]
                for key in ("host", "port", "user", "password")
                if found.get(key)
            },
        }
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_tutorial_runs_as_written(tmp_path: Path, tutorial_database: dict[str, str]) -> None:
    tutorial = Tutorial(tmp_path, {**os.environ, **tutorial_database, "PYTHONUNBUFFERED": "1"})
    for block in blocks(DOCS / "tutorial" / "first-job.md"):
        tutorial.follow(block)
    assert tutorial.output.count("which is expensive") == 1


def test_tutorial_follower_notices_a_wrong_output(tmp_path: Path) -> None:
    tutorial = Tutorial(tmp_path, dict(os.environ))
    tutorial.follow(Block(language="sh", title="", at="", text="python -c 'print(1)'"))
    with pytest.raises(AssertionError, match="2"):
        tutorial.follow(Block(language="text", title="", at="", text="2"))


def test_expected_lines_match_in_order_with_gaps_where_marked() -> None:
    assert matches("a\n…\nc", "x\na\nb\nc\n")
    assert not matches("a\nc", "c\na\n")


def test_version_of_the_package_can_be_asked_without_django() -> None:
    code = "import django_belay, sys; assert django_belay.__version__; assert 'django.db' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=DOCS.parent)
