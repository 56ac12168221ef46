"""Every built-in policy keeps the shipped laws."""

import pytest

from kvloft.policies import BUILTIN
from kvloft.testing.policies import PolicyLaws

for _name in BUILTIN:
    _class = f"Test_{_name.replace('-', '_')}"
    globals()[_class] = type(_class, (PolicyLaws,), {"policy": _name})


def test_every_policy_is_covered() -> None:
    assert {f"Test_{name.replace('-', '_')}" for name in BUILTIN} <= globals().keys()


def test_the_laws_catch_a_policy_that_gives_up() -> None:
    """A policy that looks in one list only, as ARC once did in the field, fails the suite."""
    from kvloft.policies.arc import ARC

    class GivesUp(ARC):
        name = "gives-up"

        def evict(self, n, keep, offer):
            side = self._t1 if len(self._t1) >= self.target else self._t2
            victims = [key for key in side if key not in keep][:n]
            self.forget(victims)
            return victims

    class Laws(PolicyLaws):
        policy = GivesUp

    with pytest.raises(Exception, match="breaks law 1"):
        Laws().test_evicts_whatever_may_go()


def test_the_laws_catch_a_policy_that_learns_too_early() -> None:
    from kvloft.policies.arc import ARC

    class Hasty(ARC):
        name = "hasty"

        def admit(self, offer):
            super().admit(offer)
            super().commit(offer.keys, offer.request)

    class Laws(PolicyLaws):
        policy = Hasty

    with pytest.raises(AssertionError):
        Laws().test_failed_store_leaves_no_trace()
