"""What a span costs on the scheduler's thread: without a provider, and with OpenTelemetry's SDK.

python benchmarks/spans.py [--short]
"""

import argparse
import time

from kvloft.tracing import Spans


def cost(spans: Spans, count: int) -> float:
    """Seconds of a span's beginning and end."""
    start = time.perf_counter()
    for _ in range(count):
        span = spans.begin("demote", 32, "disk")
        spans.end(span, "ok")
    return (time.perf_counter() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="take a second")
    count = 10_000 if parser.parse_args().short else 200_000
    spans = Spans.find(1 << 20)
    if spans is None:
        print("OpenTelemetry's API is not installed: a job costs nothing")
        return
    idle = cost(spans, count)
    print(f"no provider: {idle * 1e6:.1f} microseconds a job, {idle / 32 * 1e9:.0f} nanoseconds a block of 32")
    try:
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        return
    made = cost(Spans(TracerProvider().get_tracer("kvloft"), 1 << 20), count)
    print(f"with the SDK: {made * 1e6:.1f} microseconds a job, {made / idle:.0f} times as much")


if __name__ == "__main__":
    main()
