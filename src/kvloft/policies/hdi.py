"""Hit-density index: keep what brings the most hits for the room and time it takes.

How long it takes until a block is used again, if ever, depends on what it is: the tail of a conversation's third turn, a
prefix that many requests share, a document that was sent once. So each segment of a chain has a class; for each class the
chance of reuse at each age is learned (`hazard.py`), evicted blocks included, so that evicting does not hide what would have
come; and from that follows an index, expected hits by expected residence. The segment with the lowest index leaves, the
oldest first, from the tail of its chain upwards. After Beckmann, Chen and Cidon, "LHD: Improving Cache Hit Rate by
Maximizing Hit Density", NSDI 2018, which estimates hit densities per class and age by sampling; here ages are looked through
to the best moment of giving up, and classes come from the structure of chains.

It keeps an eye on what LRU would have, and loses blocks that LRU keeps only as far as it can afford to miss them
(`shadow.py`); otherwise it evicts what LRU has lost, or what it would lose next, which leads back to LRU's cache.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence, Set
from itertools import islice

import numpy as np

from kvloft._table import Ages, Ghosts, Uses
from kvloft.policies.ages import STAGES, AgedSegment
from kvloft.policies.base import Offer, Policy
from kvloft.policies.chains import ChainTree, runs
from kvloft.policies.hazard import EDGES, Hazards
from kvloft.policies.shadow import NEVER, Rival
from kvloft.request import Key, Request

_TURNS = 6
_BRANCHES = (0.03, 0.1, 0.3)
_SHARED = (2, 3, 6)
_FIRST_BRANCH = _TURNS
_FIRST_SHARED = _FIRST_BRANCH + len(_BRANCHES) + 1
_REMNANT = _FIRST_SHARED + len(_SHARED) + 1
_CLASSES = _REMNANT + 1


_KINDS_BY_READS = tuple(_FIRST_SHARED + bisect_right(_SHARED, reads) for reads in range(max(_SHARED) + 1))
"""The class of a segment by how often it was read; the last also if that was more often."""


class HDI(Policy):
    """Evicts the segment with the fewest expected hits by expected residence.

    Classes: a tail that continues a conversation, by turn; a tail that branches off elsewhere, by how many of the branches
    there are used again; a part that was used again, by how often; what a conversation left behind when it went on from an
    earlier block.
    """

    name = "hdi"
    minds_running = True
    HAZARDS = Hazards
    RIVAL = Rival
    GHOSTS = 8
    """Evicted blocks that are remembered, in capacities; 8 bytes each."""
    PERIOD = 256
    """Requests between refreshes of the index."""
    LOOK = 256
    """Requests between looks at which segments have become too old for a bin."""
    DECLINE = 0.85
    """A new tail is not worth storing if its index is below this part of what was evicted lately."""
    PARTIAL = 0.75
    """If a request's last block is left behind more often than this, last blocks leave first."""
    TRIAL = 64
    """One such tail in so many is stored all the same."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._begin()

    def _begin(self) -> None:
        self._tree: ChainTree[AgedSegment] = ChainTree(AgedSegment, self.capacity)
        self._hazards = self.HAZARDS(_CLASSES)
        self._ages = Ages(_CLASSES, EDGES, STAGES)
        """The ends of resident chains, which may leave next."""
        self._uses = Uses(self._ages)
        self._ghosts = Ghosts()
        """Evicted blocks that followed the resident ones of their segments, ..."""
        self._memory = self.GHOSTS * self.capacity
        """... and how many there may be."""
        self._price = 0.0
        """Running mean of the index of what was evicted."""
        self._declined = 0
        self._partial = 0.0
        """How often conversations go on from one block before the end of the last request, and not from its end."""
        self._tips: OrderedDict[int, None] = OrderedDict()
        """Segments at whose end a request ended, and nothing has come behind yet."""
        self._missed: dict[Hashable, list[AgedSegment]] = {}
        """By request whose store was declined: ghosts that stand for what it would have stored, head to tail."""
        self._rival = self.RIVAL(self.capacity)
        self._rank()

    # The contract.

    def accept(self, offer: Offer, need: int) -> int:
        if self._worst >= self.DECLINE * self._price:
            return len(offer.keys)
        accepted = 0
        for run, before in runs(offer.keys, offer):
            for kind, blocks in self._kinds(run, before):
                if self._worth[kind] < self.DECLINE * self._price:
                    rest = len(offer.keys) - accepted
                    if not self._rival.affords(rest, rest):
                        return len(offer.keys)
                    self._declined += 1
                    if self._declined % self.TRIAL:
                        return accepted
                accepted += blocks
        return accepted

    def admit(self, offer: Offer) -> None:
        for run, before in runs(offer.keys, offer):
            known = self._tree.of(before) if before is not None else None
            if known and known.owner and self._extends(known, before, offer.request) and not self._ghosts.find(run):
                self._tree.extend(known, run)
                continue
            parent = self._end_at(known, before)
            for ghost, part in self._parts(run):
                parent = self._attach(part, parent, ghost, offer.request)
        for run, before in runs(offer.declined, offer) if offer.declined else ():
            self._miss(run, before, offer.request)
            self._trim()

    def commit(self, keys: Sequence[Key], request: Request) -> None:
        counts: dict[int, int] = {}
        for number, count in self._tree.home.runs(keys):
            counts[number] = counts.get(number, 0) + count
        for number, count in counts.items():
            segment = self._tree.segments[number]
            if origin := segment.origin:
                ghost, matched, kind, bin = origin
                segment.origin = None
                self._uses.reuse(kind, bin, count)
                if ghost.evicted:
                    self._reused(ghost)
                    self._drop_ghost(ghost, matched)
            elif not segment.committed and segment.parent:
                segment.parent.branches += 1
            segment.committed = True

    def finish(self, chain: Sequence[Key], stored: Set[Key], request: Request) -> None:
        missed = self._missed.pop(request.id, None)
        if missed:
            missed = [ghost for ghost in missed if self._tree.segments.get(ghost.number) is ghost]
        if not chain and not missed:
            return
        self._ages.tick()
        clock = self._ages.clock
        if clock % self.LOOK == 0:
            self._uses.look()
        path = self._path(chain)
        if path:
            end = path[-1]
            end.ends = True
            if len(end.keys) > 1 and end.keys[0] in stored:
                self._tips[end.number] = None
            above = path[0].parent
            while above and above.keys:
                path.insert(0, above)
                above = above.parent
        for segment in path[:-1] if self._tips else ():
            self._tips.pop(segment.number, None)
        self._use([*path, *missed] if missed else path, stored)
        if clock % self.PERIOD == 0:
            self._hazards.observe(self._uses.take())
            self._hazards.refresh()
            self._rank()

    def evict(self, n: int, keep: Set[Key], offer: Offer) -> list[Key]:
        victims = self._evict_tips(n, keep) if self._tips and self._partial > self.PARTIAL else []
        left: list[AgedSegment] = []
        ages, price = self._ages, self._price
        freely = True
        while (wanted := n - len(victims)) and (segment := ages.take() if freely else self._take_what_lru_lost()):
            free = segment.free(wanted, keep)
            if free and freely and not self._rival.lets(segment, free):
                freely = False
                ages.put(segment)
                continue
            if free:
                price += (ages.index(segment) - price) * (free / self.capacity)
                victims += self._evict_tail(segment, free)
            if segment.keys:
                left.append(segment)
        for segment in left:
            ages.put(segment)
        self._price = price
        self.evictions["leaf"] += n - wanted
        if wanted:
            inner = [key for key in self._tree.home if key not in keep][:wanted]
            self.forget(inner)
            self.evictions["inner"] += len(inner)
            victims += inner
        if self._ghosts.blocks > self._memory:
            self._trim()
        return victims

    def forget(self, keys: Sequence[Key]) -> None:
        shadow = self._rival.shadow
        for segment, lost in self._tree.drop(keys):
            if segment.origin:
                shadow.lose(segment, lost)
            else:
                shadow.forget(segment, lost, lost)
            if not segment.keys:
                self._emptied(segment)
                if not segment.evicted:
                    self._remove(segment)

    def clear(self) -> None:
        self._begin()

    def sizes(self) -> dict[str, int]:
        return {"hdi": len(self._tree.home), "ghost": self._ghosts.blocks}

    def _take_what_lru_lost(self) -> AgedSegment | None:
        """Of the leaves of which LRU has nothing, that of the lowest index; else the one that LRU would lose next."""
        lost: AgedSegment | None = self._ages.take_before(self._rival.shadow.oldest)
        return lost or self._ages.take_oldest()

    # Storing.

    def _extends(self, segment: AgedSegment, before: Key | None, request: Request) -> bool:
        """Whether what follows `before` is more of a tail that the request is still storing."""
        return segment.grows(request) and segment.keys[-1] == before and not segment.evicted and not segment.origin

    def _end_at(self, segment: AgedSegment | None, key: Key | None) -> AgedSegment:
        """The segment that ends with this block, cut if it does not."""
        if not segment:
            return self._tree.root
        at = len(segment.keys) if segment.keys[-1] == key else segment.keys.index(key) + 1
        if segment.ends and not segment.branches and segment.size - at <= 1:
            self._partial += 0.05 * (segment.size - at - self._partial)
        if at < len(segment.keys):
            return self._split(segment, at)
        return self._part_ghost(segment) if segment.evicted else segment

    def _attach(self, part: Sequence[Key], parent: AgedSegment, ghost: AgedSegment | None, request: Request) -> AgedSegment:
        """A new segment: a tail, or blocks that were evicted and come back. Their ghost stays until they have arrived."""
        segment = self._tree.add(part, parent)
        segment.owner = (request.id,)
        segment.last = self._ages.clock
        parent.live += 1
        if ghost:
            segment.stamp = ghost.stamp
            self._rival.regain(ghost, len(part))
            segment.origin = (ghost, len(part), ghost.kind, self._ages.bin(ghost))
            segment.reads, segment.turn = ghost.reads + 1, ghost.turn
            segment.ends = ghost.ends and len(part) >= ghost.evicted - 1
            segment.kind = _shared(segment.reads)
        else:
            segment.kind, segment.turn = _tail(parent)
        self._ages.put(segment)
        return segment

    def _kinds(self, run: Sequence[Key], before: Key | None) -> Iterator[tuple[int, int]]:
        """The classes that the parts of a run would have, and how many blocks each part has."""
        parent = self._tree.of(before) if before is not None else None
        for ghost, part in self._parts(run):
            yield (_shared(ghost.reads + 1) if ghost else _tail(parent or self._tree.root)[0]), len(part)
            parent = ghost

    def _miss(self, run: Sequence[Key], before: Key | None, request: Request) -> None:
        """Blocks that were not worth storing are remembered as if they had been stored and evicted at once."""
        parent = (self._tree.of(before) if before is not None else None) or self._tree.root
        missed = self._missed.setdefault(request.id, [])
        for ghost, part in self._parts(run):
            earlier = missed[-1] if missed else None
            if not ghost and earlier and earlier.evicted and earlier.stamp == NEVER:
                self._ghosts.extend(earlier, part)
                ghost = earlier
            elif not ghost:
                ghost = self._tree.add((), parent)
                ghost.kind, ghost.turn = _tail(parent)
                ghost.ends = ghost.committed = True
                parent.branches += 1
                self._ghosts.extend(ghost, part)
                missed.append(ghost)
            else:
                if ghost.keys or len(part) < ghost.evicted:
                    ghost = self._part_off(ghost, len(part))
                if ghost not in missed:
                    missed.append(ghost)
            parent = ghost

    def _part_off(self, ghost: AgedSegment, n: int) -> AgedSegment:
        """A segment of its own for the first n evicted blocks of another."""
        out = self._tree.add((), ghost.parent or self._tree.root)
        out.inherit(ghost)
        out.live = 0
        self._ghosts.part(ghost, n, out)
        self._uses.change(ghost)
        if not ghost.size:
            self._remove(ghost)
        return out

    # Use.

    def _path(self, chain: Sequence[Key]) -> list[AgedSegment]:
        """The segments of a chain, cut so that it covers each of them to its end."""
        path: list[AgedSegment] = []
        chain, at = tuple(chain), 0
        while at < len(chain):
            whole, end, at = self._tree.home.along(chain, at, self._tree.segments)
            last = whole[-1]
            cut = end < len(last.keys) and whole.pop()
            path += [self._part_ghost(segment) if segment.evicted else segment for segment in whole]
            if cut:
                path.append(self._split(last, end))
                self._leave_behind(last)
        return path

    def _use(self, path: Sequence[AgedSegment], stored: Set[Key] = frozenset()) -> None:
        """A request used these segments, head to tail; blocks in `stored` it stored itself."""
        hits, asked = self._uses.again(path, stored, _KINDS_BY_READS)
        self._rival.count(hits, self._rival.shadow.use(path), asked)

    def _reused(self, segment: AgedSegment) -> None:
        if not segment.reads and segment.parent:
            segment.parent.branches_reused += 1

    def _leave_behind(self, segment: AgedSegment) -> None:
        """A conversation went on from before this segment."""
        if not segment.reads:
            self._reclass(segment, _REMNANT)

    def _reclass(self, segment: AgedSegment, kind: int) -> None:
        segment.kind = kind
        self._uses.change(segment)
        self._ages.put(segment)

    def _split(self, segment: AgedSegment, at: int) -> AgedSegment:
        head = self._tree.split(segment, at)
        self._uses.change(segment)
        self._ages.put(head)
        return head

    # Ghosts.

    def _parts(self, run: Sequence[Key]) -> Iterator[tuple[AgedSegment | None, Sequence[Key]]]:
        """A run in parts: those evicted earlier, each with its ghost, then what is not known."""
        while run:
            found = self._ghosts.find(run)
            if not found:
                yield None, run
                return
            ghost, matched = found
            yield ghost, run[:matched]
            run = run[matched:]

    def _evict_tail(self, segment: AgedSegment, n: int) -> list[Key]:
        left = self._tree.home.cut(segment, n)
        self._ghosts.evict(segment, left)
        self._rival.shadow.lose(segment, n)
        if not segment.keys:
            self._emptied(segment)
        return left

    def _evict_tips(self, n: int, keep: Set[Key]) -> list[Key]:
        """Last blocks of requests, up to n: partial ones, that nobody can use."""
        victims: list[Key] = []
        for number in list(islice(self._tips, n)):
            segment = self._tree.segments.get(number)
            if segment and not self._rival.lets(segment, 1):
                break
            del self._tips[number]
            if (
                segment
                and not segment.live
                and not segment.evicted
                and len(segment.keys) > 1
                and segment.keys[-1] not in keep
            ):
                victims += self._evict_tail(segment, 1)
        return victims

    def _emptied(self, segment: AgedSegment) -> None:
        """Its last resident block is gone; its parent may be a leaf now."""
        self._ages.put(segment)
        parent = segment.parent
        if parent:
            parent.live -= 1
            if not parent.live and parent.keys:
                self._ages.put(parent)

    def _part_ghost(self, segment: AgedSegment) -> AgedSegment:
        """Part the resident blocks, which are used, from the evicted ones behind them, which are not."""
        return self._split(segment, len(segment.keys))

    def _drop_ghost(self, ghost: AgedSegment, n: int) -> None:
        """Its first n evicted blocks are resident again, elsewhere."""
        self._ghosts.drop(ghost, n)
        self._uses.change(ghost)
        if ghost.keys:
            return
        if ghost.evicted:
            self._leave_behind(ghost)
        else:
            self._remove(ghost)

    def _trim(self) -> None:
        while self._ghosts.blocks > self._memory:
            segment = self._ghosts.oldest()
            self._rival.shadow.forget(segment, segment.evicted, 0)
            self._ghosts.drop(segment, segment.evicted)
            self._uses.change(segment)
            if not segment.keys:
                self._remove(segment)

    def _remove(self, segment: AgedSegment) -> None:
        self._uses.end(segment)
        self._tree.remove(segment)
        self._tips.pop(segment.number, None)

    def _rank(self) -> None:
        hazards = self._hazards
        self._ages.rank(hazards.index)
        self._worth: list[float] = np.where(hazards.ever < 0.5, hazards.index[:, 0], np.inf).tolist()
        self._worst = min(self._worth)


def _tail(parent: AgedSegment) -> tuple[int, int]:
    """The class of a tail behind this segment, and its turn. Where a request ended it continues a conversation; after the
    third it is rather a shared prompt."""
    branches = parent.branches
    if parent.ends and branches < 3:
        turn = parent.turn
        return min(turn, _TURNS - 1), turn + 1
    return _FIRST_BRANCH + bisect_right(_BRANCHES, (parent.branches_reused + 0.1) / (branches + 1)), 0


def _shared(reads: int) -> int:
    """The class of a segment that was read so often."""
    return _KINDS_BY_READS[min(reads, len(_KINDS_BY_READS) - 1)]
