"""kvloft's policies behind vLLM's `CachePolicy`, for vLLM's stock `CPUOffloadingManager`.

`{"eviction_policy": "ARC", "cache_policy_module_path": "kvloft.vllm"}`: every kvloft policy can be named this way, by
its class (`LRU`, `ARC`, `ARCvLLM`) or by its name (`arc-vllm`), those of installed plug-ins included.
"""

import logging
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from itertools import count, groupby, takewhile
from operator import itemgetter
from typing import ClassVar, cast

from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus, order_request_keys

from kvloft import __version__
from kvloft.policies import BUILTIN, ARCvLLM, Offer, Policy, is_policy, make_policy, policy_names
from kvloft.policies.base import evict_checked
from kvloft.policies.hinted import Hinted
from kvloft.policies.open_chains import TailsFirst
from kvloft.request import Key, Request
from kvloft.vllm.compat import join_logging, positions_of
from kvloft.vllm.recording import Recording
from kvloft.vllm.request import request_of

_log = logging.getLogger(__name__)
_NOBODY = Request(id="unknown to the policy")


@dataclass(slots=True, eq=False)
class _Life:
    """What one request has told the policy."""

    era: object
    request: Request
    positions: dict[Key, int]
    chain: dict[Key, None] = field(default_factory=dict)
    """Blocks it named, in that order."""
    finished: bool = False

    def before(self, offered: Set[Key]) -> set[Key]:
        """Its blocks that must not leave for the offered ones: what it named, and what the scheduler knows to come before
        the last of these. What comes after may leave; it is of no use without them."""
        last = max((self.positions.get(key, 0) for key in offered), default=0)
        return self.chain.keys() | {key for key, position in self.positions.items() if position < last}


class KvloftCachePolicy(CachePolicy):
    """A kvloft policy as the stock manager wants it. The manager keeps slots and pins; this keeps them out of reach.

    The stock manager names blocks one by one where a policy decides by batch, so inserted and completed blocks are
    gathered and passed on before the next question. It reports store misses before it knows whether there is room; they
    teach only when the bytes have arrived. Blocks of a request's own chain do not leave for its later ones: such a store
    is refused, and the engine offers it again.

    Hints are executed; what cannot be had here is refusing: the stock manager stores all that it offers, so a policy's or a
    rule's opinion that a block is not worth its room is not asked for, and there are no settings for quotas.
    """

    name: ClassVar[str]
    """The kvloft policy's name."""
    spares_own_chain: ClassVar[bool] = True
    record: ClassVar[str | None] = None
    """A file to record every request in."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.policy: Policy = make_policy(self.name, cache_capacity)
        self._hinted = Hinted(TailsFirst.over(self.policy))
        join_logging()
        _log.info("kvloft %s in vLLM's own manager: %d blocks, policy %s", __version__, cache_capacity, self.name)
        facts = {"policy": self.name, "capacity": cache_capacity}
        self._recording = Recording(self.record, facts) if self.record else None
        self._chunks: dict[Key, ChunkStatus] = {}
        self._busy: set[Key] = set()
        """Chunks being written or read."""
        self._missed: dict[Key, _Life] = {}
        """Store misses that have not been inserted, and who reported them last."""
        self._reporter: _Life | None = None
        self._arriving: list[Key] = []
        self._arriving_for: _Life | None = None
        self._asked: Offer | None = None
        """The offer that evicted last; a policy decides once about an offer, so it is admitted as the same one."""
        self._again: list[Key] = []
        """Those of `_arriving` that their request stored before."""
        self._writing: dict[Key, tuple[int, _Life | None]] = {}
        """Chunks being written: their number in the order of insertion, and by whom."""
        self._landed: dict[Key, None] = {}
        self._serials = count()
        self._era = object()

    # What the manager asks.

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self._chunks.get(key)

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        self._settle()
        if n == 0:
            return []
        chunks = self._chunks
        life = self._asking(protected)
        keep = self._busy | (chunks.keys() & protected)
        if life and self.spares_own_chain:
            keep |= chunks.keys() & life.before(protected)
        keep = self._hinted.protect({*keep})
        if n > len(chunks) - len(keep):
            return None
        self._asked = self._offer(n, protected, life)
        victims = evict_checked(self._hinted, n, keep, self._asked)
        return [(cast(OffloadKey, key), chunks.pop(key)) for key in victims]

    # What the manager tells.

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """A store is being offered. Nothing is learned yet: it may be refused or fail."""
        self._settle()
        life = self._reporter = self._life_of(req_context)
        if self._recording is not None:
            self._recording.arrived(req_context)
        for key in keys:
            self._missed.pop(key, None)
            self._missed[key] = life
            life.chain[key] = None

    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """The request named these blocks for the first time (vLLM 0.33)."""
        self._life_of(req_context).chain.update(dict.fromkeys(keys))

    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext | None = None) -> None:
        life = self._missed.pop(key, None)
        again = life is None
        if req_context is not None:
            life = self._life_of(req_context)
        elif life is None:
            life = self._arriving_for
        if self._landed or life is not self._arriving_for:
            self._settle()
        self._arriving_for = life
        self._arriving.append(key)
        if again:
            self._again.append(key)
        self._chunks[key] = chunk
        self._busy.add(key)
        self._writing[key] = (next(self._serials), life)
        if chunk.ref_cnt == 0:
            self.mark_evictable(key)

    def mark_evictable(self, key: OffloadKey) -> None:
        """The chunk's store has completed, or its last reader is done."""
        self._busy.discard(key)
        if key in self._writing:
            self._landed[key] = None

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._busy.add(key)

    def remove(self, key: OffloadKey) -> None:
        """The chunk's store has failed. Its request may offer it again, and then it teaches."""
        self._settle()
        del self._chunks[key]
        self._busy.discard(key)
        _, life = self._writing.pop(key, (0, None))
        self._hinted.forget([key])
        if life and not life.finished:
            self._missed[key] = life

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Count one use of these chunks now. vLLM's scheduler never asks for it."""
        self._settle()
        resident = [key for key in dict.fromkeys(keys) if key in self._chunks]
        if resident:
            self._hinted.finish(resident, self._writing.keys() & resident, request_of(req_context))

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        self._settle()
        life = self._life_of(req_context)
        life.finished = True
        if self._recording is not None:
            # A request that found everything is heard of only now.
            self._recording.arrived(req_context)
            # The manager also counts blocks as reused that stood behind a missing one and were computed again.
            leading = takewhile(reused_keys.__contains__, order_request_keys(key_groups, req_context))
            self._recording.served(req_context, leading)
            self._recording.ended(req_context)
        for key in life.chain:
            if self._missed.get(key) is life:
                del self._missed[key]
        used = insertion_only_keys | reused_keys
        ordered = [key for key in order_request_keys(key_groups, req_context) if key in used and key in self._chunks]
        self._hinted.finish(ordered, insertion_only_keys.intersection(ordered), life.request)

    def clear(self) -> None:
        self._hinted.clear()
        for kept in (self._chunks, self._busy, self._missed, self._arriving, self._again, self._writing, self._landed):
            kept.clear()
        self._reporter = self._arriving_for = self._asked = None
        self._era = object()

    # Steps.

    def _settle(self) -> None:
        """Pass on to the policy what has gathered."""
        if self._arriving:
            keys, self._arriving = self._arriving, []
            again, self._again = self._again, []
            life = self._arriving_for
            offer, self._asked = self._asked, None
            if offer is None or offer.keys != keys or offer.repeat != again:
                offer = Offer(keys, _request(life), keys, _parent(keys[0], life), again)
            self._hinted.admit(offer)
        if self._landed:
            done = sorted((*self._writing.pop(key), key) for key in self._landed)
            self._landed.clear()
            for life, batch in groupby(done, key=itemgetter(1)):
                self._hinted.commit([key for _, _, key in batch], _request(life))

    def _life_of(self, context: ReqContext) -> _Life:
        life = context.get_state(_Life)
        if life is None or life.era is not self._era:
            life = _Life(self._era, request_of(context), positions_of(context))
            context.set_state(life)
        return life

    def _asking(self, protected: Set[Key]) -> _Life | None:
        """Whose store asks for room: vLLM does not say, but who reported its misses does."""
        lives = [self._missed[key] for key in protected if key in self._missed]
        return self._reporter if self._reporter in lives else next(iter(lives), None)

    def _offer(self, n: int, protected: Set[Key], life: _Life | None) -> Offer:
        """The store that asks for room: at least n blocks, whatever the manager has said about them."""
        keys = [key for key in self._missed if key in protected]
        again: list[Key] = []
        if life:
            again = [key for key in life.chain if key in protected and key not in self._chunks and key not in self._missed]
            if again:
                asked = {*keys, *again}
                keys = [key for key in life.chain if key in asked]
        keys += [object() for _ in range(n - len(keys))]
        return Offer(keys, _request(life), keys, _parent(keys[0], life), again)


def _request(life: _Life | None) -> Request:
    return life.request if life else _NOBODY


def _parent(first: Key, life: _Life | None) -> Key | None:
    """The block before `first` in its request's chain; where the request never named one, as the scheduler knows it."""
    if life is None:
        return None
    for known in (life.chain, life.positions):
        named = reversed(known)
        if first in named and (before := next(named, None)) is not None:
            return before
    return None


@cache
def find_cache_policy(name: str) -> type[KvloftCachePolicy]:
    """The `CachePolicy` class of a kvloft policy, by its class's name or its own.

    "ARC?record=/var/log/kvloft/trace.jsonl.zst" also records every request in that file: the stock manager has no other
    way to tell a policy of a setting.

    Raises:
        AttributeError: there is no such policy; raised as such because vLLM asks with `getattr`.
    """
    classes = {policy.__name__: policy.name for policy in BUILTIN.values()}
    plain, asks, record = name.partition("?record=")
    known = classes.get(plain, plain)
    if not is_policy(known) or (asks and not record):
        raise AttributeError(
            f"kvloft has no policy {name!r}; eviction_policy can be one of: {', '.join([*classes, *policy_names()])}, "
            "with ?record=FILE behind it if requests are to be recorded"
        )
    options = {"name": known, "spares_own_chain": known != ARCvLLM.name, "record": record or None}
    return type(f"{plain}CachePolicy", (KvloftCachePolicy,), options)
