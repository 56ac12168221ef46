"""Reading what a running vLLM says of its caches at `/metrics`, and what has changed between two readings."""

import http.client
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kvloft.errors import KvloftError, MissingExtra
from kvloft.metric_names import (
    BLOCKS,
    CAPACITY,
    CASCADE,
    EVICTED,
    HITS,
    OUTCOMES,
    POLICY_BLOCKS,
    REFUSED,
    STORED,
    TIER_MEDIUM,
    TIER_OPEN,
    TIER_SIZE,
    TIER_TRANSFERS,
)

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    raise MissingExtra("top", "reading /metrics") from error

Labels: TypeAlias = tuple[str, ...]

# The label by which each metric is told apart; engines and models are summed up.
_BY_LABEL = {
    BLOCKS: ("state",),
    POLICY_BLOCKS: ("list",),
    EVICTED: ("list",),
    REFUSED: ("reason",),
    TIER_TRANSFERS: ("tier", "what"),
    TIER_MEDIUM: ("tier", "what"),
    TIER_SIZE: ("tier", "what"),
    TIER_OPEN: ("tier", "course"),
    CASCADE: ("what",),
    OUTCOMES: ("what",),
}


class Unreachable(KvloftError):
    """An instance does not answer, or not with metrics. The text says which and why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All of one instance's numbers at one moment.

    Args:
        at: seconds, of a monotonic clock.
        values: by metric, without the `_total` of counters, and the labels that matter.
    """

    at: float
    values: Mapping[str, Mapping[Labels, float]]

    def get(self, name: str, *labels: str) -> float:
        """One number; 0 if it was never reported."""
        return self.values.get(name, {}).get(labels, 0.0)

    def all(self, name: str) -> Mapping[Labels, float]:
        """One metric's numbers, by its labels."""
        return self.values.get(name, {})


def parse(text: str, at: float) -> Reading:
    """Numbers from Prometheus text.

    Raises:
        ValueError: it is none.
    """
    values: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(text):
        name = family.name.removesuffix("_total")  # which stands there when the type is told under another name
        for sample in family.samples:
            if sample.name not in (name, f"{name}_total"):
                continue
            labels = tuple(sample.labels.get(label, "") for label in _BY_LABEL.get(name, ()))
            values[name][labels] += sample.value
    return Reading(at, values)


def read(url: str, timeout: float = 5.0, clock: Callable[[], float] = time.monotonic) -> Reading:
    """One instance's numbers now.

    Args:
        url: where vLLM listens, such as "http://localhost:8000"; "/metrics" is added if it is not there.
        timeout: seconds to wait for an answer.
        clock: tells the moment.

    Raises:
        Unreachable: nothing answers there, or it has no metrics.
    """
    address = url if "://" in url else f"http://{url}"
    address = address if address.rstrip("/").endswith("/metrics") else address.rstrip("/") + "/metrics"
    try:
        with urllib.request.urlopen(address, timeout=timeout) as answer:
            return parse(answer.read().decode(), clock())
    except urllib.error.HTTPError as error:
        raise Unreachable(f"{address}: answers {error.code} {error.reason}; give the address of a vLLM server") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"{address}: {reason}; is vLLM running there, with metrics on?") from error


@dataclass(frozen=True, slots=True)
class TierView:
    """A tier in the time between two readings; sizes are those of the later one."""

    name: str
    blocks: float
    bytes: float
    capacity_bytes: float
    loaded: float
    """Blocks that came up, a second."""
    stored: float
    """Blocks that went down, a second."""
    missed: float
    """Loads that found nothing or nothing valid, a second."""
    dropped: float
    """Blocks that were not written, a second."""
    failed: float
    """Blocks whose transfer failed, a second."""
    corrupt: float
    """Blocks that did not verify, since the start."""
    left_alone: tuple[str, ...]
    """"loads", "stores": what the breaker keeps away from it."""


@dataclass(frozen=True, slots=True)
class View:
    """An instance in the time between two readings. Rates are a second; shares are 0 to 1, None where nothing happened."""

    seconds: float
    engine_hit_share: float | None
    """Of the tokens asked for, those that the engine's own prefix cache had."""
    host_hit_share: float | None
    """Of the tokens asked for below it, those that kvloft had."""
    engine_hit_share_ever: float | None
    """The same since the engine started."""
    host_hit_share_ever: float | None
    hits: float
    stored: float
    evicted: Mapping[str, float]
    refused: Mapping[str, float]
    blocks: Mapping[str, float]
    """By state: free, writing, ready, pinned."""
    capacity: float
    lists: Mapping[str, float]
    moved: Mapping[str, float]
    """Bytes between the engine and host memory: "load" and "store"."""
    waiting: float
    """Requests that wait for blocks to come up."""
    tiers: tuple[TierView, ...] = field(default_factory=tuple)


def compare(before: Reading, now: Reading) -> View:
    """What happened between two readings of one instance; since its start, if it has been restarted in between."""
    seconds = max(now.at - before.at, 1e-9)

    def grown(name: str, *labels: str, since: Reading = before) -> float:
        increase = now.get(name, *labels) - since.get(name, *labels)
        return increase if increase >= 0 else now.get(name, *labels)

    def rates(name: str) -> dict[str, float]:
        return {labels[0]: grown(name, *labels) / seconds for labels in now.all(name)}

    def share(hits: str, queries: str, since: Reading) -> float | None:
        asked = grown(queries, since=since)
        return grown(hits, since=since) / asked if asked else None

    def sizes(name: str) -> dict[str, float]:
        return {labels[0]: value for labels, value in now.all(name).items()}

    def tier(name: str) -> TierView:
        def what(*names: str) -> float:
            return sum(grown(TIER_TRANSFERS, name, one) for one in names) / seconds

        dropped = ("store_dropped", "dropped_backpressure", "dropped_gone", "dropped_open")
        courses = now.all(TIER_OPEN)
        return TierView(
            name=name,
            blocks=now.get(TIER_SIZE, name, "blocks"),
            bytes=now.get(TIER_SIZE, name, "bytes"),
            capacity_bytes=now.get(TIER_SIZE, name, "capacity_bytes"),
            loaded=what("load_ok"),
            stored=what("store_ok"),
            missed=what("load_miss"),
            dropped=what(*dropped),
            failed=what("load_failed", "store_failed"),
            corrupt=now.get(TIER_MEDIUM, name, "corrupt"),
            left_alone=tuple(course for (owner, course), open_ in courses.items() if owner == name and open_),
        )

    start = Reading(0.0, {})
    engine = ("vllm:prefix_cache_hits", "vllm:prefix_cache_queries")
    host = ("vllm:external_prefix_cache_hits", "vllm:external_prefix_cache_queries")
    names = dict.fromkeys(labels[0] for labels in now.all(TIER_SIZE))
    return View(
        seconds=seconds,
        engine_hit_share=share(*engine, before),
        host_hit_share=share(*host, before),
        engine_hit_share_ever=share(*engine, start),
        host_hit_share_ever=share(*host, start),
        hits=grown(HITS) / seconds,
        stored=grown(STORED) / seconds,
        evicted=rates(EVICTED),
        refused=rates(REFUSED),
        blocks=sizes(BLOCKS),
        capacity=now.get(CAPACITY),
        lists=sizes(POLICY_BLOCKS),
        moved={way: grown(f"vllm:kv_offload_{way}_bytes") / seconds for way in ("load", "store")},
        waiting=now.get(CASCADE, "waiting"),
        tiers=tuple(tier(name) for name in names),
    )
