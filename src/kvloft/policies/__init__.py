"""Which block leaves. One policy a file; `make_policy` finds them by name, those of installed plug-ins included."""

from importlib.metadata import entry_points

from kvloft.errors import ConfigError
from kvloft.policies.arc import ARC, ARCvLLM
from kvloft.policies.base import Offer, Policy
from kvloft.policies.chained import Chained
from kvloft.policies.fifo import FIFO
from kvloft.policies.gdsf import GDSF
from kvloft.policies.hdi import HDI
from kvloft.policies.lfu import LFU
from kvloft.policies.lirs import LIRS
from kvloft.policies.lru import LRU
from kvloft.policies.lru_k import LRU2
from kvloft.policies.s3fifo import S3FIFO
from kvloft.policies.sieve import SIEVE
from kvloft.policies.slru import SLRU
from kvloft.policies.twoq import TwoQ
from kvloft.policies.wtinylfu import WTinyLFU

__all__ = ["ARC", "BUILTIN", "LRU", "ARCvLLM", "Offer", "Policy", "is_policy", "make_policy", "policy_names"]

BUILTIN: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (LRU, ARC, ARCvLLM, FIFO, LFU, LRU2, TwoQ, SLRU, S3FIFO, SIEVE, LIRS, WTinyLFU, GDSF, HDI)
}
DEFAULT = "lru"
CHAINS = "+chains"
_GROUP = "kvloft.policies"


def policy_names() -> list[str]:
    """Names that `make_policy` knows: built in, then from the `kvloft.policies` entry points of installed packages."""
    return [*BUILTIN, *sorted(point.name for point in entry_points(group=_GROUP) if point.name not in BUILTIN)]


def is_policy(name: object) -> bool:
    """Whether `make_policy` knows this name: one of `policy_names`, "default", or either with `+chains` behind it."""
    plain = name.removesuffix(CHAINS) if isinstance(name, str) else None
    return plain == "default" or plain in policy_names()


def make_policy(policy: str | type[Policy] | Policy, capacity: int) -> Policy:
    """A policy for `capacity` blocks, from a name ("default" for the default policy), a class, or itself if it is one.

    A name with `+chains` behind it is that policy in ancestor-closed mode, see `Chained`.

    Raises:
        ConfigError: no policy has that name.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        return policy(capacity)
    if policy.endswith(CHAINS):
        return Chained(make_policy(policy.removesuffix(CHAINS), capacity))
    name = DEFAULT if policy == "default" else policy
    if name in BUILTIN:
        return BUILTIN[name](capacity)
    for point in entry_points(group=_GROUP, name=name):
        loaded = point.load()
        made = loaded(capacity)
        if not isinstance(made, Policy):
            raise ConfigError(f"policy {name!r}: {point.value} makes a {type(made).__name__}, not a kvloft Policy")
        return made
    raise ConfigError(f"policy {policy!r} is unknown; choose one of: {', '.join(policy_names())}")
