"""What a workflow costs a job beside as many independent jobs, in several shapes and sizes, in one run.

Run: ``python -m soak.bench.workflows [--counts 1000 10000] [--shapes chains layers …]``. The aim is under 3
times the time of independent jobs, at 10,000 members as at 1,000: no term grows with the square of the members.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping

from soak.bench.children import CONCURRENCY, drained_s, empty
from soak.bench.site import add_postgres_option, bench_site

#: Members and their deps, by name.
Shape = Mapping[str, list[str]]

CHAIN = 10
WIDTH = 100
DEPS = 3


def chains(count: int) -> Shape:
    """As many chains of ten as there is room for."""
    return {f"m{n}": [] if n % CHAIN == 0 else [f"m{n - 1}"] for n in range(count)}


def layers(count: int) -> Shape:
    """Layers of a hundred, each member after three of the layer above."""
    return {f"m{n}": _above(n) for n in range(count)}


def _above(n: int) -> list[str]:
    layer, place = divmod(n, WIDTH)
    return [f"m{(layer - 1) * WIDTH + (place + shift) % WIDTH}" for shift in range(DEPS)] if layer else []


def fan(count: int) -> Shape:
    """One, then all the others, then one after them: a fan-out with its fan-in."""
    middle = [f"m{n}" for n in range(1, count - 1)]
    return {"m0": [], **{name: ["m0"] for name in middle}, "last": middle}


def pairs(count: int) -> Shape:
    """Every second member after the one before it: most ends have a dependent, most members are held."""
    half = count // 2
    return {**{f"a{n}": [] for n in range(half)}, **{f"b{n}": [f"a{n}"] for n in range(half)}}


SHAPES: Mapping[str, Callable[[int], Shape]] = {
    "chains": chains,
    "layers": layers,
    "fan": fan,
    "pairs": pairs,
}
NAMES = [*SHAPES, "batch"]


def enqueue_workflow(shape: Shape) -> float:
    """Seconds to insert it."""
    from django_belay import workflows
    from soak.bench.jobs import child

    before = time.perf_counter()
    flow = workflows.Workflow()
    for n, (name, deps) in enumerate(shape.items()):
        flow.add(name, child, n, deps=deps)
    flow.enqueue()
    return time.perf_counter() - before


def enqueue_batch(count: int) -> float:
    """Seconds to insert a batch of so many jobs, the one on completion among them."""
    from django_belay import Batch
    from soak.bench.jobs import noop

    before = time.perf_counter()
    batch = Batch(noop)
    batch.add_many(noop, [{}] * (count - 1))
    batch.enqueue()
    return time.perf_counter() - before


def enqueue(name: str, count: int) -> float:
    return enqueue_batch(count) if name == "batch" else enqueue_workflow(SHAPES[name](count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--shapes", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument("--processes", type=int, default=1)
    add_postgres_option(parser)
    given = parser.parse_args()
    options = {"QUEUES": {"bench": CONCURRENCY}, "LEASE_TTL": 30}
    with bench_site("belay_bench_workflows", options, force=given.postgres) as dsn:
        from soak.bench.jobs import child

        for count in given.counts:
            empty(dsn)
            child.enqueue_many({"n": n} for n in range(count))
            alone = drained_s(dsn, count, given.processes)
            print(f"{count:,} independent jobs {alone:.2f} s")
            for name in given.shapes:
                empty(dsn)
                inserted = enqueue(name, count)
                took = drained_s(dsn, count, given.processes)
                print(
                    f"{count:,} members, {name}: inserted in {inserted:.2f} s, drained in {took:.2f} s, "
                    f"{took / count * 1000:.2f} ms a job, {took / alone:.2f} times "
                    f"(load {os.getloadavg()[0]:.1f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
