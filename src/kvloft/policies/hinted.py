"""What callers said of their requests, executed with any policy."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import chain, filterfalse
from operator import attrgetter

from kvloft.policies.base import Offer, Policy, Wrapper
from kvloft.policies.chains import ChainTree, runs
from kvloft.policies.told import Conversations, Deadlines, ToldSegment
from kvloft.request import Key, Request


class Hinted(Wrapper):
    """Executes hints with any policy: first what is dead or expired leaves, then what is worth less than normal, then as the
    policy says.

    - `last`: the conversation's blocks are dead, but for those that others came behind.
    - `ttl`: likewise, once the time is over. A block that others use too lives as long as any of them says.
    - `priority`: each step above 0 defers eviction until a tenth of the capacity more has been evicted (at most all of it);
      below 0, blocks leave before others. Softly: a block that was not used for long goes all the same.
    - `pin_until`: blocks stay, as long as there are others that can leave.
    - quotas: a tenant that holds its share of the capacity makes room from its own blocks, oldest first.

    What a conversation shares with others stays known for `MEMORY` capacities of blocks, also when it is evicted meanwhile.
    Until a request has hints it costs nothing and knows nothing; blocks from before that are as the policy says.

    Args:
        policy: decides among blocks of which nothing is known.
        clock: seconds, as in `Request.pin_until`.
        quotas: by tenant, the share of the capacity from which it pushes out none but its own blocks.
    """

    name = "hinted"
    STEP = 0.1
    """Capacities to be evicted before one step of priority is used up."""
    MEMORY = 4
    HELD = 0.5
    """Share of the capacity that priority and pins may hold back."""

    def __init__(
        self, policy: Policy, clock: Callable[[], float] = time.time, quotas: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(policy)
        self._clock = clock
        self._quotas = dict(quotas or {})
        self._begin()

    def _begin(self) -> None:
        self._active = bool(self._quotas)
        self._tree: ChainTree[ToldSegment] = ChainTree(ToldSegment, self.capacity, touch=False)
        self._evicted = 0
        self._first: dict[str, OrderedDict[int, None]] = {"told": OrderedDict(), "low": OrderedDict()}
        """Segments that leave before others, in that order. In these queues and those of tenants are ends of chains only."""
        self._expiries = Deadlines(self._tree.segments, attrgetter("expires"))
        self._held: OrderedDict[int, None] = OrderedDict()
        """Segments that are held back, in the order of their last use, ..."""
        self._held_keys: set[Key] = set()
        """... and their blocks."""
        self._holds = Deadlines(self._tree.segments, attrgetter("held_until"))
        self._pins = Deadlines(self._tree.segments, attrgetter("pinned_until"))
        self._sessions: dict[str, OrderedDict[int, None]] = {}
        self._conversations = Conversations(int(self.MEMORY * self.capacity))
        self._tenants: dict[str, OrderedDict[int, None]] = {tenant: OrderedDict() for tenant in self._quotas}
        self._owned: dict[str, int] = dict.fromkeys(self._quotas, 0)

    # The contract.

    def admit(self, offer: Offer) -> None:
        self.policy.admit(offer)
        request = offer.request
        if not self._active:
            self._active = bool(
                request.session
                or request.last
                or request.priority
                or request.ttl is not None
                or request.pin_until is not None
            )
        if self._active:
            for run, before in runs(offer.keys, offer):
                shared = self._conversations.note(run, request.session) if request.session is not None else 0
                if shared:
                    self._attach(run[:shared], before, request).shared = True
                    before = run[shared - 1]
                if run[shared:]:
                    self._attach(run[shared:], before, request)

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        self.policy.finish(chain, stored, request)
        if self._active:
            self._tell(chain, request)

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        self._evicted += n
        if not self._active:
            return self.policy.evict(n, keep, offer)
        self._expire()
        victims: list[Key] = []
        for why, queue in self._first.items():
            self._leave(queue, why, n - len(victims), keep, victims)
        over = self._over_quota(offer)
        if over > 0:
            self._leave(self._tenants[offer.request.tenant], "quota", min(over, n - len(victims)), keep, victims)
        self.policy.forget(victims)
        if len(victims) < n:
            chosen = self._evict_unheld(n - len(victims), keep, offer)
            self._drop(chosen)
            victims += chosen
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        self.policy.forget(keys)
        self._drop(keys)

    def clear(self) -> None:
        self.policy.clear()
        self._begin()

    # Hearing.

    def _attach(self, run: Sequence[Key], before: Key | None, request: Request) -> ToldSegment:
        parent = self._tree.end_at(before, lambda segment, at: self._split(segment, at, request))
        if parent.grows(request) and not parent.shared:
            self._tree.extend(parent, run)
            segment = parent
        else:
            segment = self._tree.add(run, parent)
            segment.owner = (request.id,)
            segment.tenant = request.tenant
            if request.session:
                segment.session = request.session
                self._sessions.setdefault(request.session, OrderedDict())[segment.number] = None
            parent.live += 1
            self._leave_queues(parent)
            if parent is not self._tree.root and len(parent.followers) < ToldSegment.MANY:
                parent.followers.add(hash(run[0]))
                parent.shared = parent.shared or len(parent.followers) > 1
        if request.tenant in self._owned:
            self._owned[request.tenant] += len(run)
            self._enter_queues(segment)
        return segment

    def _split(self, segment: ToldSegment, at: int, request: Request) -> ToldSegment:
        head = self._tree.split(segment, at)
        head.leave_behind(segment, request.session)
        if segment.session in self._sessions:
            self._sessions[segment.session][head.number] = None
        if segment.number in self._held:
            self._held[head.number] = None
            self._holds.add(head)
            self._pins.add(head)
        self._expiries.add(head)
        return head

    def _tell(self, chain: Sequence[Key], request: Request) -> None:
        path: list[ToldSegment] = []
        for segment, end in self._tree.walk([key for key in chain if key in self._tree.home]):
            path.append(self._split(segment, end, request) if end < len(segment.keys) else segment)
        alone = True
        for segment in reversed(path):
            segment.owner = None
            self._revive(segment)
            segment.shared = segment.shared or (segment.session or request.session) != (request.session or segment.session)
            alone = alone and not segment.shared and len(segment.followers) <= (segment is not path[-1])
            self._mark(segment, request, alone)
        if request.last and request.session:
            for number in reversed(self._sessions.pop(request.session, OrderedDict())):
                segment = self._tree.segments[number]
                if not (segment.followers or segment.dead or segment.shared):
                    self._die(segment)

    def _mark(self, segment: ToldSegment, request: Request, alone: bool) -> None:
        """What the request says of a segment that it used; `alone` if nobody else is known to use it."""
        number = segment.number
        if request.last and alone:
            self._die(segment)
        until = math.inf if request.ttl is None else self._clock() + request.ttl
        segment.expires = until if alone else max(segment.expires, until)
        self._expiries.add(segment)
        if request.priority > 0:
            steps = min(1.0, self.STEP * request.priority)
            segment.held_until = max(segment.held_until, self._evicted + int(steps * self.capacity))
            self._holds.add(segment)
        if request.pin_until is not None:
            segment.pinned_until = max(segment.pinned_until, request.pin_until)
            self._pins.add(segment)
        if self._holds_back(segment):
            self._held.pop(number, None)
            self._held[number] = None
            self._held_keys.update(segment.keys)
            while len(self._held_keys) > self.HELD * self.capacity:
                self._release(self._tree.segments[next(iter(self._held))])
        elif request.priority < 0 and alone and not segment.leaves:
            segment.leaves = "low"
        self._leave_queues(segment)
        self._enter_queues(segment)

    def _revive(self, segment: ToldSegment) -> None:
        self._leave_queues(segment)
        segment.leaves = ""
        if segment.dead:
            segment.dead = False
            if segment.parent and segment.parent is not self._tree.root:
                segment.parent.followers.add(hash(segment.keys[0]))

    def _die(self, segment: ToldSegment) -> None:
        segment.dead = True
        self._tell_to_leave(segment)
        if segment.parent:
            segment.parent.followers.discard(hash(segment.keys[0]))

    def _tell_to_leave(self, segment: ToldSegment) -> None:
        self._leave_queues(segment)
        segment.leaves = "told"
        self._enter_queues(segment)

    # Queues.

    def _queues(self, segment: ToldSegment) -> Iterator[OrderedDict[int, None]]:
        """Those in which it is while it ends a chain."""
        if segment.leaves:
            yield self._first[segment.leaves]
        if segment.tenant in self._tenants:
            yield self._tenants[segment.tenant]

    def _enter_queues(self, segment: ToldSegment, first: bool = False) -> None:
        if not segment.live:
            for queue in self._queues(segment):
                queue[segment.number] = None
                if first:
                    queue.move_to_end(segment.number, last=False)

    def _leave_queues(self, segment: ToldSegment) -> None:
        for queue in self._queues(segment):
            queue.pop(segment.number, None)

    # Holding back.

    def _holds_back(self, segment: ToldSegment) -> bool:
        return segment.held_until > self._evicted or segment.pinned_until > self._clock()

    def _release(self, segment: ToldSegment) -> None:
        if self._held.pop(segment.number, self) is None:
            self._held_keys.difference_update(segment.keys)

    def _evict_unheld(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        """What the policy evicts of what is not held back; of that, those used longest ago, if the others are too few."""
        held = self._held_keys
        if not held:
            return self.policy.evict(n, keep, offer)
        room = self.policy.residents() - len(keep) - n
        given_up: list[Key] = []
        for number in self._held:
            if len(held) - len(given_up) <= room:
                break
            given_up += self._tree.segments[number].keys
        held.difference_update(given_up)
        others = [*filterfalse(held.__contains__, keep)]
        held.update(others)
        try:
            return self.policy.evict(n, held, offer)
        finally:
            held.difference_update(others)
            held.update(given_up)

    # Leaving.

    def _expire(self) -> None:
        """What has run out by now: lives, and what held blocks back."""
        now = self._clock()
        for segment in self._expiries.due(now):
            self._tell_to_leave(segment)
        for segment in chain(self._holds.due(self._evicted), self._pins.due(now)):
            if not self._holds_back(segment):
                self._release(segment)

    def _leave(self, queue: OrderedDict[int, None], why: str, n: int, keep: Set[Key], victims: list[Key]) -> None:
        """Up to n blocks from the segments of a queue, from the tails of chains upwards, join the victims."""
        passed: list[int] = []
        left = n
        while queue and left > 0:
            number = next(iter(queue))
            wanted = self._tree.segments[number].keys[-left:]
            free = next((at for at, key in enumerate(reversed(wanted)) if key in keep), len(wanted))
            if free < len(wanted):
                del queue[number]
                passed.append(number)
            left -= free
            victims += reversed(wanted[len(wanted) - free :])
            self._drop(wanted[len(wanted) - free :])
        for number in reversed(passed):
            queue[number] = None
            queue.move_to_end(number, last=False)
        self.evictions[why] += n - max(left, 0) if n > 0 else 0

    def _over_quota(self, offer: Offer) -> int:
        quota = self._quotas.get(offer.request.tenant)
        if quota is None:
            return 0
        return self._owned[offer.request.tenant] + len(offer.keys) - int(quota * self.capacity)

    def _drop(self, keys: Sequence[Key]) -> None:
        """Blocks are gone."""
        self._held_keys.difference_update(keys)
        for segment, count in self._tree.drop([key for key in keys if key in self._tree.home]):
            if segment.tenant in self._owned:
                self._owned[segment.tenant] -= count
            if segment.keys:
                continue
            self._leave_queues(segment)
            self._release(segment)
            parent = segment.parent
            if parent:
                parent.live -= 1
                if parent.keys:
                    self._enter_queues(parent, first=True)
            if segment.session in self._sessions:
                self._sessions[segment.session].pop(segment.number, None)
                if not self._sessions[segment.session]:
                    del self._sessions[segment.session]
            self._tree.remove(segment)
