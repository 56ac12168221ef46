"""What the log is told while things fail: little, with counts."""

import logging

import pytest

from hostile import Clock, Host
from kvloft.keys import Namespace
from kvloft.pool import BlockPool
from kvloft.request import Request
from kvloft.tiers.memory import MemoryTier
from kvloft.tiers.remote import Bounds, RemoteTier, Store
from kvloft.tiers.wrappers import Faulty
from kvloft.transfer.cascade import Cascade
from kvloft.transfer.limits import CascadeConfig
from kvloft.troubles import PAUSE, Troubles


def test_a_tier_that_fails_now_and_then_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Half of its jobs succeed, so it is never left alone for long."""
    caplog.set_level(logging.WARNING, "kvloft.transfer")
    clock, host, pool = Clock(), Host(8), BlockPool(8, "lru")
    tier = Faulty(MemoryTier(name="flaky"), store=0.5)
    cascade = Cascade(pool, host.view, [tier], CascadeConfig(breaker_failures=100), clock)
    failed = 0
    for at in range(400):
        request = Request(at)
        plan = pool.prepare_store([f"key {at}"], request)
        assert plan is not None
        cascade.stored(pool.complete_store(plan.keys, request))
        pool.finish(request)
        cascade.step()
        cascade.step()
        failed = cascade.stats().tiers["flaky"].counters.get("store_failed", 0)
    assert failed > 100
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ["tier flaky: store failed: injected by Faulty"]


class Broken(Store):
    """Nothing works."""

    def exists(self, names):
        raise ConnectionError("redis://user:hunter2@host: refused")

    put = get = touch = remove = exists

    def close(self):
        pass


def test_a_store_that_is_away_is_told_once_and_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    bounds = Bounds(fresh=1e-6, lookup=30.0)
    tier = RemoteTier(Broken(), 16, Namespace(model="m"), name="away", bounds=bounds)
    for at in range(10):
        while any(answer.value == "unknown" for answer in tier.lookup([f"key {at}"])):
            pass
        tier.touch([f"key {at}"])
        tier.remove([f"key {at}"])
    tier.close()
    told = sorted(record.getMessage() for record in caplog.records)
    assert [line.split(": ")[1] for line in told] == [
        "lookup failed, so its blocks count as missing",
        "remove failed",
        "touch failed",
    ]
    assert "hunter2" not in caplog.text and all(record.exc_info in (None, False) for record in caplog.records)


def test_trouble_is_told_again_after_a_while_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    troubles = Troubles("tier x", logging.getLogger("kvloft.tiers"), clock)
    for _ in range(5):
        troubles.tell("load failed", "gone")
    clock.tick(PAUSE)
    troubles.tell("load failed", "gone")
    assert [record.getMessage() for record in caplog.records] == [
        "tier x: load failed: gone",
        "tier x: load failed: gone (4 more since the last of these)",
    ]
