"""What lies in which tier, told in an order that an index can rely on."""

from collections.abc import Sequence
from typing import NamedTuple

from kvloft.request import Key
from kvloft.tiers.base import JobResult, Status
from kvloft.transfer.link import Course, Job, Link


class Residence(NamedTuple):
    """A block that a tier holds from now on, or no more.

    Args:
        tier: its name.
        key: the block.
        stored: whether it is there.
        certain: whether its leaving will be told, whoever makes it leave. If not, it is what this engine last saw.
    """

    tier: str
    key: Key
    stored: bool
    certain: bool


class Residency:
    """Hears of the tiers' jobs and changes, and tells of each block in each tier that it came or went, never twice the same.

    A tier that reports its changes is believed. Of another, a shared store say, what this engine stored or loaded is there
    until a load misses it.

    Args:
        links: the tiers.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._known: dict[str, dict[Key, None]] = {link.name: {} for link in links}
        self._told: list[Residence] = []
        self._latest = self._void = 0
        """Numbers of the job submitted last, and of the last one whose answer says nothing of what is found now."""
        for link in links:
            link.observers.append(self)
        self._told = self.take()  # From now on tiers keep their changes in mind.

    def submitted(self, link: Link, job: Job) -> None:
        self._latest = job.number

    def answered(self, link: Link, job: Job, result: JobResult) -> None:
        if link.tier.reports_changes or job.number <= self._void:
            return
        for key, status in zip(job.keys, result.statuses, strict=True):
            if status is Status.OK:
                self._tell(link, key, True)
            elif status is Status.MISS and job.course is Course.UP:
                self._tell(link, key, False)

    def take(self) -> list[Residence]:
        """What has changed since the last call, for each tier in the order in which it did."""
        for link in self._links:
            for change in link.tier.take_changes():
                self._tell(link, change.key, change.stored)
        told, self._told = self._told, []
        return told

    def forget(self) -> None:
        """Nothing in the tiers is found any more."""
        self._void = self._latest
        for link in self._links:
            for key in list(self._known[link.name]):
                self._tell(link, key, False)

    def repeat(self) -> None:
        """Tell of all that is there as if it had gone and come: an index that was told to clear everything has it again."""
        self._told = self.take()
        for link in self._links:
            known = list(self._known[link.name])
            for key in known:
                self._tell(link, key, False)
            for key in known:
                self._tell(link, key, True)

    def _tell(self, link: Link, key: Key, stored: bool) -> None:
        known = self._known[link.name]
        if stored == (key in known):
            return
        if stored:
            known[key] = None
        else:
            del known[key]
        self._told.append(Residence(link.name, key, stored, link.tier.reports_changes))
