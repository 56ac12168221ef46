"""Spans of stores and loads, as vLLM's scheduler lets them begin and end."""

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs pip install 'kvloft[vllm]'")
pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry's SDK")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from vllm.v1.kv_offload.base import ReqContext

from kvloft.testing.scheduler import make_keys
from kvloft.tracing import Spans
from kvloft.vllm import KvloftManager


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(Spans, "find", lambda chunk_bytes: Spans(provider.get_tracer("kvloft"), chunk_bytes))
    return KvloftManager(8, chunk_bytes=100), exporter


def spans_of(exporter: InMemorySpanExporter) -> list[tuple[str, int, int, str]]:
    spans = exporter.get_finished_spans()
    exporter.clear()
    names = ("kvloft.blocks", "kvloft.bytes", "kvloft.outcome")
    return [(span.name, *(span.attributes[name] for name in names)) for span in spans]  # type: ignore[index, misc]


def test_stores_and_loads_are_spans(traced: tuple[Any, InMemorySpanExporter]) -> None:
    manager, exporter = traced
    first, second = (ReqContext(req_id=name) for name in ("first", "second"))
    one, two = make_keys(range(3)), make_keys(range(3, 5))
    manager.prepare_store(one, first)
    manager.prepare_store(two, first)
    assert spans_of(exporter) == []
    manager.complete_store(set(two), first)
    manager.complete_store(set(one), first, success=False)
    assert spans_of(exporter) == [("kvloft.store", 2, 200, "ok"), ("kvloft.store", 3, 300, "failed")]
    manager.prepare_load(two, second)
    manager.complete_load(set(two), second)
    assert spans_of(exporter) == [("kvloft.load", 2, 200, "ok")]


def test_what_a_reset_overtakes_is_ended_once(traced: tuple[Any, InMemorySpanExporter]) -> None:
    manager, exporter = traced
    context, keys = ReqContext(req_id="a"), make_keys(range(2))
    manager.prepare_store(keys, context)
    manager.reset_cache()
    assert spans_of(exporter) == [("kvloft.store", 2, 200, "reset")]
    manager.complete_store(set(keys), context)
    assert spans_of(exporter) == []
    manager.prepare_store(keys, context)
    manager.shutdown()
    assert spans_of(exporter) == [("kvloft.store", 2, 200, "abandoned")]
