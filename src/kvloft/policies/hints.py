"""Hints that callers give with a request: how they are read, and how they are executed with any policy.

Reading never fails: what is malformed is left out and told as a list of problems.
"""

import heapq
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple, Self

from kvloft.policies.base import Offer, Policy
from kvloft.policies.chains import ChainTree, Segment, runs
from kvloft.request import Key, Request


class Hints(NamedTuple):
    """What a caller said.

    Args:
        fields: of `Request`, as its keyword arguments.
        problems: what was ignored, each with the field, the value and what would be right.
    """

    fields: dict[str, Any]
    problems: list[str]


def read_hints(given: object) -> Hints:
    """Read hints, as JSON decodes them: `{"session": "...", "last": true, "ttl": 600, "priority": 5, "tenant": "...",
    "pin_until": 1767225600}`. Times are in seconds, `pin_until` since 1970. Unknown fields are problems, too.
    """
    if given is None:
        return Hints({}, [])
    if not isinstance(given, Mapping):
        return Hints({}, [f'hints: {given!r:.80} is no object; give fields by name, such as {{"session": "..."}}'])
    fields: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        if name not in _READERS:
            problems.append(f"hints: {name!r:.80} is unknown; choose from: {', '.join(_READERS)}")
            continue
        accepts, wanted = _READERS[name]
        if value is None:
            continue
        if accepts(value):
            fields[name] = value
        else:
            problems.append(f"hints: {name}: {value!r:.80} is not {wanted}")
    return Hints(fields, problems)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


_READERS: dict[str, tuple[Callable[[object], bool], str]] = {
    "session": (_is_name, "a text of 1 to 256 characters"),
    "last": (lambda value: isinstance(value, bool), "true or false"),
    "ttl": (_is_seconds, "a number of seconds, 0 or more"),
    "priority": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and -100 <= value <= 100,
        "a whole number from -100 to 100",
    ),
    "tenant": (_is_name, "a text of 1 to 256 characters"),
    "pin_until": (_is_seconds, "a time in seconds since 1970"),
}
"""By field: what is accepted, and its description."""


class _Told(Segment):
    """A segment and what callers said of it."""

    __slots__ = ("dead", "expires", "followers", "held_until", "pinned_until", "session", "shared", "tenant")

    MANY = 64
    """So many different followers are not told apart."""

    def __init__(self, number: int, keys: tuple[Key, ...], parent: Self | None) -> None:
        super().__init__(number, keys, parent)
        self.followers: set[int] = set()
        """Hashes of the blocks that have come behind it and are not known to be dead."""
        self.dead = False
        self.expires = math.inf
        self.pinned_until = -math.inf
        self.held_until = 0
        """It is worth more than others until so many blocks have been evicted."""
        self.tenant = ""
        self.session: str | None = None
        self.shared = False
        """Whether more than one conversation has had these blocks. Then others may come."""

    def inherit(self, whole: Self) -> None:
        super().inherit(whole)
        self.dead, self.expires = whole.dead, whole.expires
        self.session, self.tenant, self.shared = whole.session, whole.tenant, whole.shared
        self.pinned_until, self.held_until = whole.pinned_until, whole.held_until
        if whole.keys:
            self.followers = {hash(whole.keys[0])}

    def leave_behind(self, rest: Self, session: str | None) -> None:
        """A request went on from the end of this one and not to `rest`, which was behind it: what it leaves behind is no
        use by others if it was the same conversation's, or just the partial block at its end."""
        if rest.session == session if session else len(rest.keys) == 1 and not rest.followers:
            self.followers.discard(hash(rest.keys[0]))


class Hinted(Policy):
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
        super().__init__(policy.capacity)
        self.name = policy.name  # type: ignore[misc]
        self.policy = policy
        self.evictions = policy.evictions
        self._clock = clock
        self._quotas = dict(quotas or {})
        self._begin()

    def _begin(self) -> None:
        self._active = bool(self._quotas)
        self._tree: ChainTree[_Told] = ChainTree(_Told)
        self._evicted = 0
        self._out: OrderedDict[int, None] = OrderedDict()
        """Segments that are dead or expired, in the order in which they leave."""
        self._low: OrderedDict[int, None] = OrderedDict()
        self._expiries: list[tuple[float, int]] = []
        self._held: OrderedDict[int, None] = OrderedDict()
        self._sessions: dict[str, OrderedDict[int, None]] = {}
        self._seen: OrderedDict[int, str] = OrderedDict()
        """By a block's hash, resident or not: the conversation that stored it last."""
        self._tenants: dict[str, OrderedDict[int, None]] = {tenant: OrderedDict() for tenant in self._quotas}
        self._owned: dict[str, int] = dict.fromkeys(self._quotas, 0)

    # The contract.

    def accept(self, offer: Offer, need: int) -> int:
        return self.policy.accept(offer, need)

    def protect(self, keep: set[Key]) -> set[Key]:
        return self.policy.protect(keep)

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
                shared = self._see(run, request.session)
                if shared:
                    self._attach(run[:shared], before, request).shared = True
                    before = run[shared - 1]
                if run[shared:]:
                    self._attach(run[shared:], before, request)

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        self.policy.commit(keys, request)

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
        self._leave(self._out, "told", n, keep, victims)
        self._leave(self._low, "low", n - len(victims), keep, victims)
        over = self._over_quota(offer)
        if over > 0:
            self._leave(self._tenants[offer.request.tenant], "quota", min(over, n - len(victims)), keep, victims)
        self.policy.forget(victims)
        if len(victims) < n:
            chosen = self.policy.evict(n - len(victims), self._with_held(keep, n - len(victims)), offer)
            self._drop(chosen)
            victims += chosen
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        self.policy.forget(keys)
        self._drop(keys)

    def clear(self) -> None:
        self.policy.clear()
        self._begin()

    def sizes(self) -> dict[str, int]:
        return self.policy.sizes()

    # Hearing.

    def _see(self, run: Sequence[Key], session: str | None) -> int:
        """How many blocks of a run, from its first on, another conversation is known to have had."""
        if session is None:
            return 0
        hashes = list(map(hash, run))
        shared = 0
        for place, seen in enumerate(map(self._seen.get, hashes), 1):
            if seen is not None and seen != session:
                shared = place
        self._seen.update(dict.fromkeys(hashes, session))
        while len(self._seen) > self.MEMORY * self.capacity:
            self._seen.popitem(last=False)
        return shared

    def _attach(self, run: Sequence[Key], before: Key | None, request: Request) -> _Told:
        parent = self._tree.of(before) if before is not None else None
        if parent and parent.owner == (request.id,) and parent.keys[-1] == before and not parent.live and not parent.shared:
            self._tree.extend(parent, run)
            segment = parent
        else:
            if parent is None:
                parent = self._tree.root
            elif parent.keys[-1] != before:
                parent = self._split(parent, parent.keys.index(before) + 1, request)
            segment = self._tree.add(run, parent)
            segment.owner = (request.id,)
            segment.tenant = request.tenant
            if request.session:
                segment.session = request.session
                self._sessions.setdefault(request.session, OrderedDict())[segment.number] = None
            parent.live += 1
            if parent is not self._tree.root and len(parent.followers) < _Told.MANY:
                parent.followers.add(hash(run[0]))
                parent.shared = parent.shared or len(parent.followers) > 1
        if request.tenant in self._owned:
            self._owned[request.tenant] += len(run)
            self._tenants[request.tenant][segment.number] = None
        return segment

    def _split(self, segment: _Told, at: int, request: Request) -> _Told:
        head = self._tree.split(segment, at)
        head.leave_behind(segment, request.session)
        for queue in (self._sessions.get(segment.session or ""), self._tenants.get(segment.tenant)):
            if queue is not None:
                queue[head.number] = None
        return head

    def _tell(self, chain: Sequence[Key], request: Request) -> None:
        path: list[_Told] = []
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

    def _mark(self, segment: _Told, request: Request, alone: bool) -> None:
        """What the request says of a segment that it used; `alone` if nobody else is known to use it."""
        number = segment.number
        if request.last and alone:
            self._die(segment)
        until = math.inf if request.ttl is None else self._clock() + request.ttl
        segment.expires = until if alone else max(segment.expires, until)
        if segment.expires < math.inf:
            heapq.heappush(self._expiries, (segment.expires, number))
        if request.priority > 0:
            steps = min(1.0, self.STEP * request.priority)
            segment.held_until = max(segment.held_until, self._evicted + int(steps * self.capacity))
        if request.pin_until is not None:
            segment.pinned_until = max(segment.pinned_until, request.pin_until)
        self._held.pop(number, None)
        if segment.held_until > self._evicted or segment.pinned_until > self._clock():
            self._held[number] = None
        elif request.priority < 0 and alone:
            self._low[number] = None
        if segment.tenant in self._tenants:
            self._tenants[segment.tenant].pop(number, None)
            self._tenants[segment.tenant][number] = None

    def _revive(self, segment: _Told) -> None:
        self._out.pop(segment.number, None)
        self._low.pop(segment.number, None)
        if segment.dead:
            segment.dead = False
            if segment.parent and segment.parent is not self._tree.root:
                segment.parent.followers.add(hash(segment.keys[0]))

    def _die(self, segment: _Told) -> None:
        segment.dead = True
        self._out[segment.number] = None
        if segment.parent:
            segment.parent.followers.discard(hash(segment.keys[0]))

    # Leaving.

    def _expire(self) -> None:
        now = self._clock()
        while self._expiries and self._expiries[0][0] <= now:
            _, number = heapq.heappop(self._expiries)
            segment = self._tree.segments.get(number)
            if segment and segment.expires <= now:
                self._out[number] = None

    def _leave(self, queue: OrderedDict[int, None], why: str, n: int, keep: Set[Key], victims: list[Key]) -> None:
        """Up to n blocks from the segments of a queue, from the tails of chains upwards, join the victims."""
        before = len(victims)
        waiting = True
        while waiting and len(victims) - before < n:
            waiting = False
            for number in list(queue):
                segment = self._tree.segments.get(number)
                if segment is None:
                    del queue[number]
                elif not segment.live:
                    wanted = segment.keys[-(n - len(victims) + before) :]
                    free = len(wanted)
                    if not keep.isdisjoint(wanted):
                        free = next(at for at, key in enumerate(reversed(wanted)) if key in keep)
                    victims += reversed(wanted[len(wanted) - free :])
                    self._drop(wanted[len(wanted) - free :])
                    waiting = waiting or (free == len(wanted) and bool(free))
                if len(victims) - before == n:
                    break
        self.evictions[why] += len(victims) - before

    def _with_held(self, keep: Set[Key], n: int) -> Set[Key]:
        """`keep` and what is held back, if n others are left; of what is held back, what was used last."""
        now = self._clock()
        room = min(int(self.HELD * self.capacity), self._residents() - len(keep) - n)
        held: set[Key] = set()
        for number in reversed(list(self._held)):
            segment = self._tree.segments.get(number)
            if segment is None or (segment.held_until <= self._evicted and segment.pinned_until <= now):
                del self._held[number]
            elif len(held) + len(segment.keys) <= room:
                held.update(segment.keys)
        return keep | held if held else keep

    def _residents(self) -> int:
        return sum(size for name, size in self.policy.sizes().items() if not name.startswith("ghost"))

    def _over_quota(self, offer: Offer) -> int:
        quota = self._quotas.get(offer.request.tenant)
        if quota is None:
            return 0
        return self._owned[offer.request.tenant] + len(offer.keys) - int(quota * self.capacity)

    def _drop(self, keys: Sequence[Key]) -> None:
        """Blocks are gone."""
        for segment, count in self._tree.drop([key for key in keys if key in self._tree.home]):
            if segment.tenant in self._owned:
                self._owned[segment.tenant] -= count
            if segment.keys:
                continue
            if segment.parent:
                segment.parent.live -= 1
            for queue in (self._sessions.get(segment.session or ""), self._tenants.get(segment.tenant)):
                if queue is not None:
                    queue.pop(segment.number, None)
            if segment.session and not self._sessions.get(segment.session, True):
                del self._sessions[segment.session]
            self._tree.remove(segment)
