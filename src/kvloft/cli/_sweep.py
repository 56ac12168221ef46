"""Runs of several policies at several sizes, with a progress bar."""

from collections.abc import Sequence

from kvloft.cli._progress import progress
from kvloft.sim.replay import Capacity, Replay, ReplayResult, survey
from kvloft.traces.formats import Trace


def sweep(trace: Trace, policies: Sequence[str], sizes: Sequence[Capacity]) -> list[ReplayResult]:
    """Every policy at every size, in that order."""
    results: list[ReplayResult] = []
    with progress() as bars:
        counted = survey(trace)
        bar = bars.add_task("blocks", total=counted.blocks * len(policies) * len(sizes))
        for policy in policies:
            for size in sizes:
                run = Replay(policy.strip(), size.of(counted.unique))
                bars.update(bar, description=f"{policy} {run.pool.capacity:,}")
                before = 0
                for request in trace:
                    run.step(request)
                    if run.total - before > 10_000:
                        bars.advance(bar, run.total - before)
                        before = run.total
                bars.advance(bar, run.total - before)
                results.append(run.result(trace.name, size.fraction(counted.unique)))
    return results
