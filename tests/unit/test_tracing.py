"""Spans of a cascade, seen through OpenTelemetry's SDK."""

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry's SDK")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from kvloft.pool import BlockPool, Lookup
from kvloft.request import Request
from kvloft.tiers.base import Tier
from kvloft.tiers.memory import MemoryTier
from kvloft.tiers.wrappers import Faulty, Slow
from kvloft.tracing import Spans
from kvloft.transfer.cascade import Cascade
from kvloft.transfer.limits import CascadeConfig

BLOCK, SLOTS = 4096, 16


class Traced:
    """A cascade whose spans are kept."""

    def __init__(self, *tiers: Tier, **config: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.arena = np.zeros((SLOTS, BLOCK), np.uint8)
        self.pool = BlockPool(SLOTS)
        spans = Spans(provider.get_tracer("kvloft"), BLOCK)
        config = {"close_seconds": 0.01, **config}
        self.cascade = Cascade(
            self.pool, lambda slot: memoryview(self.arena[slot]), tiers, CascadeConfig(**config), spans=spans
        )

    def store(self, name: str, keys: list[str]) -> None:
        request = Request(name)
        plan = self.pool.prepare_store(keys, request)
        assert plan is not None
        self.cascade.stored(self.pool.complete_store(plan.keys, request))
        self.pool.finish(request)
        self.settle()

    def settle(self) -> None:
        for _ in range(10):
            self.cascade.step()

    def load(self, name: str, keys: list[str]) -> list[Lookup]:
        request = Request(name)
        for _ in range(20):
            found = [self.cascade.lookup(key, request) for key in keys]
            if Lookup.PENDING not in found:
                break
            self.cascade.step()
        self.cascade.finish(request)
        return found

    def take(self) -> list[Any]:
        spans = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return spans


def names(count: int, start: int = 0) -> list[str]:
    return [f"key {at}" for at in range(start, start + count)]


def test_jobs_of_tiers_are_spans() -> None:
    traced = Traced(MemoryTier(name="near"))
    traced.store("a", names(2))
    [down] = traced.take()
    assert (down.name, down.kind, down.status.status_code) == ("kvloft.demote", SpanKind.INTERNAL, StatusCode.UNSET)
    assert dict(down.attributes) == {
        "kvloft.blocks": 2,
        "kvloft.bytes": 2 * BLOCK,
        "kvloft.tier": "near",
        "kvloft.outcome": "ok",
    }
    assert down.end_time >= down.start_time
    traced.cascade.reset()
    assert traced.load("b", names(2)) == [Lookup.HIT] * 2
    [up] = traced.take()
    assert up.name == "kvloft.promote" and up.attributes["kvloft.blocks"] == 2


def test_what_fails_is_an_error_and_a_shared_store_is_a_client() -> None:
    tier = Faulty(MemoryTier(name="far"), store=1.0)
    tier.remote = True
    traced = Traced(tier)
    traced.store("a", names(1))
    [down] = traced.take()
    assert (down.kind, down.status.status_code) == (SpanKind.CLIENT, StatusCode.ERROR)
    assert down.status.description == "injected by Faulty"
    assert (down.attributes["kvloft.outcome"], down.attributes["error.type"]) == ("failed", "kvloft.transfer_failed")


def test_blocks_that_end_differently_are_counted() -> None:
    traced = Traced(MemoryTier(BLOCK - 1, name="tiny"), MemoryTier(name="large"))
    traced.store("a", names(2))
    outcomes = {span.attributes["kvloft.tier"]: span.attributes["kvloft.outcome"] for span in traced.take()}
    assert outcomes == {"tiny": "dropped", "large": "ok"}

    class Half(MemoryTier):
        def lookup(self, keys: Any) -> Any:
            return MemoryTier(shelf=self._shelf).lookup(names(1)) * len(keys)

    half = Half(name="half")
    traced = Traced(half)
    half._store("key 0", memoryview(bytearray(BLOCK)))
    traced.load("b", names(2))
    [up] = traced.take()
    assert up.attributes["kvloft.outcome"] == "partial"
    assert (up.attributes["kvloft.blocks.ok"], up.attributes["kvloft.blocks.miss"]) == (1, 1)


def test_what_never_ends_is_ended_when_the_cascade_closes() -> None:
    slow = Slow(MemoryTier(name="hung"), math.inf)
    traced = Traced(slow)
    traced.store("a", names(1))
    assert traced.take() == []
    assert not traced.cascade.close()
    [span] = traced.take()
    assert span.attributes["kvloft.outcome"] == "abandoned"


def test_without_a_provider_nothing_is_made_and_without_the_api_nothing_is_asked() -> None:
    found = Spans.find(BLOCK)
    assert found is not None
    span = found.begin("store", 3)
    assert not span.is_recording()
    found.end(span, "ok")
    code = (
        "import sys; sys.modules['opentelemetry.trace'] = None\n"
        "from kvloft.tracing import Spans\n"
        "sys.exit(Spans.find() is not None)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
