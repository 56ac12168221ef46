"""The metrics that kvloft reports through vLLM and reads again from `/metrics`: names, labels, meaning, what to do.

Everything that names a metric takes it from here: what reports it (`kvloft.vllm.metrics`, `kvloft.vllm.tier_metrics`), what
reads it (`kvloft.watch`), and the table in docs/metrics.md. vLLM lists and unregisters only what begins with "vllm:".
"""

from enum import StrEnum
from typing import NamedTuple

HITS = "vllm:kvloft_hits"
MISSES = "vllm:kvloft_misses"
DECLINED = "vllm:kvloft_declined"
LOADED = "vllm:kvloft_loaded"
STORED = "vllm:kvloft_stored"
FAILED = "vllm:kvloft_failed_stores"
LATE = "vllm:kvloft_late_completions"
IGNORED_HINTS = "vllm:kvloft_ignored_hints"
REFUSED = "vllm:kvloft_refused_stores"
EVICTED = "vllm:kvloft_evicted"
BLOCKS = "vllm:kvloft_blocks"
POLICY_BLOCKS = "vllm:kvloft_policy_blocks"
CAPACITY = "vllm:kvloft_capacity_blocks"
RESETS = "vllm:kvloft_resets"
TENANT_BLOCKS = "vllm:kvloft_tenant_blocks"

TIER_TRANSFERS = "vllm:kvloft_tier_transfers"
TIER_MEDIUM = "vllm:kvloft_tier_medium"
TIER_SIZE = "vllm:kvloft_tier_size"
TIER_OPEN = "vllm:kvloft_tier_open"
TIER_JOB_SECONDS = "vllm:kvloft_tier_oldest_job_seconds"
CASCADE = "vllm:kvloft_cascade"
WAITING_SECONDS = "vllm:kvloft_waiting_seconds"
OUTCOMES = "vllm:kvloft_cascade_outcomes"
PREFILL = "vllm:kvloft_prefill_tokens_per_second"

DISK_TIER = "vllm:kvloft_disk_tier"
DISK_TIER_SIZE = "vllm:kvloft_disk_tier_size"


class Kind(StrEnum):
    """Type of a metric, as Prometheus calls it. Counters end in `_total` at `/metrics`."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Where(StrEnum):
    """Who reports a metric."""

    HOST = "host memory"
    """`KvloftSpec`, always."""
    CASCADE = "tiers"
    """`KvloftSpec` with tiers."""
    STOCK = "disk below vLLM's own tiering"
    """`DiskTier` under `TieringOffloadingSpec`."""


class Metric(NamedTuple):
    """A metric.

    Args:
        name: without the `_total` of counters.
        kind: its type.
        labels: beside those that vLLM adds (`engine`, `model_name`).
        meaning: what it counts or tells.
        action: what to do when it moves.
        where: who reports it.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    action: str
    where: Where = Where.HOST


METRICS = (
    Metric(
        HITS,
        Kind.COUNTER,
        (),
        "Blocks handed to a load, once per request and block.",
        "Flat while requests come: see the alert KvloftServesNothing.",
    ),
    Metric(
        MISSES,
        Kind.COUNTER,
        (),
        "Blocks accepted for storing because they were not resident, once per request and block.",
        "Grows much faster than hits: more host memory or another policy may pay; ask `kvloft curve`.",
    ),
    Metric(
        DECLINED,
        Kind.COUNTER,
        (),
        "Blocks left out of accepted stores, because policy or admission rule found them not worth the room.",
        "Wanted with a policy that chooses. If hits fall with it, compare policies with `kvloft replay`.",
    ),
    Metric(
        LOADED, Kind.COUNTER, (), "Blocks whose load has completed.", "Falls behind hits: loads hang; see the engine's log."
    ),
    Metric(STORED, Kind.COUNTER, (), "Blocks whose store has completed.", "Flat under load: see refused and failed stores."),
    Metric(
        FAILED,
        Kind.COUNTER,
        (),
        "Blocks whose store has failed; their slots were freed.",
        "Any growth: see the alert KvloftStoresFail.",
    ),
    Metric(
        LATE,
        Kind.COUNTER,
        (),
        "Blocks named in completions that came twice, after a reset, or from somebody who did not own them.",
        "A few after a reset are normal. Steady growth is a fault of the engine: report it.",
    ),
    Metric(
        IGNORED_HINTS,
        Kind.COUNTER,
        (),
        "Malformed hints of requests, which were ignored.",
        "Mend the client; the log names each problem once.",
    ),
    Metric(
        REFUSED,
        Kind.COUNTER,
        ("reason",),
        "Stores (calls, not blocks) refused: size (larger than the pool), busy (too much is being written or read), "
        "protected (what is left belongs to the same request).",
        "See the alert KvloftStoresRefused.",
    ),
    Metric(
        EVICTED,
        Kind.COUNTER,
        ("list",),
        "Blocks evicted, by the list, queue or segment of the policy they sat in, or the hint that made them leave.",
        "As fast as stored: host memory is full, which is normal. Hits low as well: give more, or see `kvloft plan`.",
    ),
    Metric(
        BLOCKS,
        Kind.GAUGE,
        ("state",),
        "Blocks of host memory by state: free, writing (a store is in flight), ready (readable); these three sum to the "
        "capacity. pinned: those of ready that a transfer is reading.",
        "writing and pinned near the capacity: see the alert KvloftHostMemoryTiedUp.",
    ),
    Metric(
        POLICY_BLOCKS,
        Kind.GAUGE,
        ("list",),
        "Blocks in each list, queue or segment of the policy. ghost...: remembered, not resident.",
        "Tells how the policy splits memory; nothing to do.",
    ),
    Metric(CAPACITY, Kind.GAUGE, (), "Blocks that host memory can hold.", "Changes only with a restart."),
    Metric(
        RESETS,
        Kind.COUNTER,
        (),
        "Resets of the cache.",
        "vLLM resets before it sleeps and after weights were changed; more often than that, find out who asks for it.",
    ),
    Metric(
        TENANT_BLOCKS,
        Kind.COUNTER,
        ("tenant", "what"),
        "Blocks loaded and stored by tenant, where requests name one; 32 of them by name, the rest as (others).",
        "One takes most: give quotas.",
    ),
    Metric(
        TIER_TRANSFERS,
        Kind.COUNTER,
        ("tier", "what"),
        "Blocks by what became of them between host memory and a tier: load_ok, load_miss, load_failed, store_ok, "
        "store_dropped, store_failed, present, dropped_backpressure, dropped_gone, dropped_open, shunned, overdue; probes "
        "and unasked count jobs, raised counts calls.",
        "dropped_...: see the alert KvloftDemotionsDropped; failed, overdue: KvloftTierFails; shunned: the tier is slower "
        "than computing, see `kvloft doctor --disk`.",
        Where.CASCADE,
    ),
    Metric(
        TIER_MEDIUM,
        Kind.COUNTER,
        ("tier", "what"),
        "What a tier says of its medium: stored, loaded, missed, corrupt, evicted, bytes_written, bytes_read, ...",
        "corrupt: see the alert KvloftCorruptBlocks.",
        Where.CASCADE,
    ),
    Metric(
        TIER_SIZE,
        Kind.GAUGE,
        ("tier", "what"),
        "Of a tier: blocks, bytes, capacity_bytes; slots loading and storing; blocks queued.",
        "queued near its bound: the tier is too slow for what goes down; see the alert KvloftDemotionsDropped.",
        Where.CASCADE,
    ),
    Metric(
        TIER_OPEN,
        Kind.GAUGE,
        ("tier", "course"),
        "1 if a tier is left alone (its breaker is open or probing), by course: loads, stores.",
        "See the alert KvloftTierLeftAlone.",
        Where.CASCADE,
    ),
    Metric(
        TIER_JOB_SECONDS,
        Kind.GAUGE,
        ("tier",),
        "Age of the oldest job that a tier has not answered; 0 if there is none.",
        "Grows towards `hang_seconds`: the tier hangs and is about to be left alone.",
        Where.CASCADE,
    ),
    Metric(
        CASCADE,
        Kind.GAUGE,
        ("what",),
        "Requests waiting; blocks wanted, loading, held for requests that wait; slots set_aside under loads given up.",
        "waiting grows: tiers are slow, or `promote_share` is small. set_aside: a tier hangs.",
        Where.CASCADE,
    ),
    Metric(
        WAITING_SECONDS,
        Kind.GAUGE,
        (),
        "How long the request that has waited longest for blocks from below has been waiting; 0 if none waits.",
        "Near `pending_seconds`: requests wait in vain; lower it, or look at the tiers.",
        Where.CASCADE,
    ),
    Metric(
        OUTCOMES,
        Kind.COUNTER,
        ("what",),
        "Blocks refused (beyond the prefix that fits) or expired; requests abandoned.",
        "refused: host memory is small for such prompts. expired: tiers are slow; see `pending_seconds`.",
        Where.CASCADE,
    ),
    Metric(
        PREFILL,
        Kind.GAUGE,
        (),
        "Tokens a second that the engine computes, as configured or measured.",
        "Far from what you know of your engine: give `prefill_tokens_per_second`, for tiers are judged by it.",
        Where.CASCADE,
    ),
    Metric(
        DISK_TIER,
        Kind.COUNTER,
        ("what",),
        "What kvloft's disk tier counts: stored, loaded, missed, corrupt, evicted, bytes_read, ...",
        "corrupt: see the alert KvloftCorruptBlocks.",
        Where.STOCK,
    ),
    Metric(
        DISK_TIER_SIZE,
        Kind.GAUGE,
        ("what",),
        "Of kvloft's disk tier: blocks, bytes, capacity_bytes.",
        "bytes at capacity_bytes is normal: blocks leave for others.",
        Where.STOCK,
    ),
)
"""Every one of them."""


def metric_table(where: Where) -> str:
    """What one reporter reports, as a table in Markdown."""
    rows = ["| name | type | labels | meaning | when it moves |", "|---|---|---|---|---|"]
    for metric in METRICS:
        if metric.where is where:
            name = metric.name + ("_total" if metric.kind is Kind.COUNTER else "")
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            rows.append(f"| `{name}` | {metric.kind} | {labels} | {metric.meaning} | {metric.action} |")
    return "\n".join(rows)
