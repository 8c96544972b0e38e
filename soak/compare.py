"""Do PostgreSQL and the journal come to the same? Random histories of the whole Storage protocol on both.

    python -m soak.compare [--histories N] [--steps N] [--seed N] [--report FILE] [--postgres SOURCE]

Each history runs on PostgreSQL, on a journal, and on a journal whose owner is replaced before each operation,
with the same operations at the same simulated instants; answers and rows are compared after each. The first
difference is shrunk and shown, and the command ends with 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psycopg
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from django_belay.testing.postgres import SOURCES, find_postgres
from tests.behaviour.comparing import World
from tests.behaviour.histories import machine_of
from tests.behaviour.worlds import worlds

DATABASE = "belay_compare"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=50, help="operations a history, at most")
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    parser.add_argument("--report", type=Path, default=None, help="write what was run as Markdown")
    parser.add_argument("--no-shrink", action="store_true", help="show the first difference as it was found")
    parser.add_argument("--postgres", choices=SOURCES, default=None)
    options = parser.parse_args(argv)
    chosen = time.time_ns() % 2**32 if options.seed is None else options.seed
    print(f"{options.histories} histories of at most {options.steps} operations, seed {chosen}", flush=True)
    began = time.monotonic()
    operations: Counter[str] = Counter()
    difference: BaseException | None = None
    with (
        find_postgres(options.postgres) as server,
        tempfile.TemporaryDirectory(prefix="belay-compare-") as root,
    ):
        params = _database(server.parameters)
        with worlds(params, Path(root)) as made:

            def tear_down(world: World) -> None:
                operations.update(
                    line.split()[1] if line[:1].isdigit() else line.split()[0] for line in world.log
                )
                if made.made % 100 == 0:
                    print(f"{made.made} histories, {time.monotonic() - began:.0f} s", flush=True)
                made.end(world)

            machine = machine_of(made.make, tear_down)
            phases = [Phase.generate] if options.no_shrink else [Phase.generate, Phase.shrink]
            run = settings(
                max_examples=options.histories,
                stateful_step_count=options.steps,
                deadline=None,
                database=None,
                report_multiple_bugs=False,
                print_blob=False,
                phases=phases,
                suppress_health_check=list(HealthCheck),
            )
            try:
                run_state_machine_as_test(seed(chosen)(machine), settings=run)  # type: ignore[no-untyped-call]
            except Exception as error:
                difference = error
        count = made.made
    text = _report(count, operations, chosen, time.monotonic() - began, difference)
    print(text)
    if options.report is not None:
        options.report.write_text(text)
    if difference is not None:
        print(str(difference)[:20_000], file=sys.stderr)
        for note in getattr(difference, "__notes__", ()):
            print(note, file=sys.stderr)
    return 1 if difference is not None else 0


def _database(maintenance: dict[str, str]) -> dict[str, str]:
    with psycopg.connect(**maintenance, autocommit=True) as connection:  # type: ignore[arg-type]
        connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {DATABASE}")
    return {**maintenance, "dbname": DATABASE}


def _report(
    histories: int, operations: Counter[str], chosen: int, took_s: float, difference: BaseException | None
) -> str:
    lines = [
        f"{histories} histories, {sum(operations.values()):,} operations, seed {chosen}, {took_s:.0f} s: "
        + ("no difference" if difference is None else "a difference"),
        "",
        "| Operation | Times |",
        "|---|---|",
        *(f"| {name} | {count:,} |" for name, count in operations.most_common()),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
