"""What host memory takes in, beside what its policy decides: the settings `admission` and `quotas`, simulated."""

from collections.abc import Callable, Iterable

import msgspec

from kvloft.errors import ConfigError
from kvloft.policies import Policy
from kvloft.policies.admission import make_admission
from kvloft.pool import BlockPool
from kvloft.traces.event import TraceRequest


class Intake(msgspec.Struct, frozen=True):
    """How pools are made that share these settings.

    Args:
        admission: a rule's name in `kvloft.policies.admission.ADMISSIONS`.
        quotas: by tenant, the share of the capacity from which it makes room from its own blocks.

    Raises:
        ConfigError: the rule is unknown.
    """

    admission: str = "everything"
    quotas: dict[str, float] = {}

    def __post_init__(self) -> None:
        make_admission(self.admission, capacity=1)

    def check(self, requests: Iterable[TraceRequest]) -> None:
        """Read as much of a trace as it takes to find a request of each tenant with a quota.

        Raises:
            ConfigError: there is none.
        """
        if not self.quotas:
            return
        named: set[str] = set()
        for request in requests:
            named.add(request.tenant)
            if named >= self.quotas.keys():
                return
        missing, known = sorted(self.quotas.keys() - named), sorted(named - {""})
        raise ConfigError(
            f"quota: no request of the trace names tenant {missing[0]!r}; "
            + (f"tenants in it are: {', '.join(known[:20])}" if known else "it names no tenants")
        )

    def pool(self, capacity: int, policy: str | type[Policy] | Policy, clock: Callable[[], float]) -> BlockPool:
        """A pool of so many blocks."""
        return BlockPool(capacity, policy, make_admission(self.admission, capacity), quotas=self.quotas, clock=clock)


def parse_quotas(texts: Iterable[str]) -> dict[str, float]:
    """Shares by tenant from texts such as `acme=0.3`.

    Raises:
        ConfigError: one reads otherwise, names a tenant twice, or gives no share above 0, at most 1.
    """
    quotas: dict[str, float] = {}
    for text in texts:
        tenant, _, value = text.rpartition("=")
        try:
            share = float(value)
        except ValueError:
            share = 0.0
        if not tenant or not 0 < share <= 1:
            raise ConfigError(f"quota: {text!r} is not TENANT=SHARE with a share above 0, at most 1, such as acme=0.3")
        if tenant in quotas:
            raise ConfigError(f"quota: tenant {tenant!r} is named twice; give it one share")
        quotas[tenant] = share
    return quotas
