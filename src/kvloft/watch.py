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
    TENANT_BLOCKS,
    TIER_JOB_SECONDS,
    TIER_MEDIUM,
    TIER_OPEN,
    TIER_SIZE,
    TIER_TRANSFERS,
    WAITING_SECONDS,
)

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    raise MissingExtra("top", "reading /metrics") from error

Labels: TypeAlias = tuple[str, ...]

SOURCES = "vllm:prompt_tokens_cached_by_source"
_OLDEST = (WAITING_SECONDS, TIER_JOB_SECONDS)
"""Of several engines the oldest counts, not the sum."""

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
    TENANT_BLOCKS: ("tenant", "what"),
    TIER_JOB_SECONDS: ("tier",),
    SOURCES: ("source",),
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
            known = values[name][labels]
            values[name][labels] = max(known, sample.value) if name in _OLDEST else known + sample.value
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
    bytes_read: float
    """From the medium, a second."""
    bytes_written: float
    evicted: float
    """Blocks that left the medium for others, a second."""
    pending: float
    """Blocks on their way, or waiting to go down, now."""
    oldest_seconds: float
    """Age of the oldest job that it has not answered."""
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
    sources: Mapping[str, float]
    """Of the tokens of all prompts, those that came from each place: device, host, disk, ..."""
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
    waiting_seconds: float
    """For how long the one that has waited longest has."""
    tenants: Mapping[str, Mapping[str, float]]
    """Blocks a second, "loaded" and "stored", by tenant; those with most first. Empty if requests name none."""
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
            bytes_read=grown(TIER_MEDIUM, name, "bytes_read") / seconds,
            bytes_written=grown(TIER_MEDIUM, name, "bytes_written") / seconds,
            evicted=grown(TIER_MEDIUM, name, "evicted") / seconds,
            pending=sum(now.get(TIER_SIZE, name, one) for one in ("loading", "storing", "queued")),
            oldest_seconds=now.get(TIER_JOB_SECONDS, name),
            missed=what("load_miss"),
            dropped=what(*dropped),
            failed=what("load_failed", "store_failed"),
            corrupt=now.get(TIER_MEDIUM, name, "corrupt"),
            left_alone=tuple(course for (owner, course), open_ in courses.items() if owner == name and open_),
        )

    def tenants() -> dict[str, dict[str, float]]:
        names = {labels[0] for labels in now.all(TENANT_BLOCKS)}
        rates = {name: {what: grown(TENANT_BLOCKS, name, what) / seconds for what in ("loaded", "stored")} for name in names}
        return dict(sorted(rates.items(), key=lambda item: (-sum(item[1].values()), item[0])))

    prompts = grown("vllm:prompt_tokens")
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
        sources={
            source: tokens / prompts for (source,) in now.all(SOURCES) if prompts and (tokens := grown(SOURCES, source))
        },
        hits=grown(HITS) / seconds,
        stored=grown(STORED) / seconds,
        evicted=rates(EVICTED),
        refused=rates(REFUSED),
        blocks=sizes(BLOCKS),
        capacity=now.get(CAPACITY),
        lists=sizes(POLICY_BLOCKS),
        moved={way: grown(f"vllm:kv_offload_{way}_bytes") / seconds for way in ("load", "store")},
        waiting=now.get(CASCADE, "waiting"),
        waiting_seconds=now.get(WAITING_SECONDS),
        tenants=tenants(),
        tiers=tuple(tier(name) for name in names),
    )
