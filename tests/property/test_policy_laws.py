"""Every built-in policy keeps the shipped laws."""

import pytest

from kvloft.policies import BUILTIN
from kvloft.testing.policies import PolicyLaws

for _name in BUILTIN:
    _class = f"Test_{_name.replace('-', '_')}"
    # As in vLLM, of a running request the blocks stored first leave first.
    globals()[_class] = type(_class, (PolicyLaws,), {"policy": _name, "tails_first": _name != "arc-vllm"})


def test_every_policy_is_covered() -> None:
    assert {f"Test_{name.replace('-', '_')}" for name in BUILTIN} <= globals().keys()


def test_the_laws_catch_a_policy_that_gives_up() -> None:
    """A policy that looks in one list only, as ARC once did in the field, fails the suite."""
    from kvloft.policies.arc import ARC

    class GivesUp(ARC):
        name = "gives-up"

        def evict(self, n, keep, offer):
            victims = self._lists.oldest(n, keep, int(self._lists.size(0) < self.target))
            self.forget(victims)
            return victims

    class Laws(PolicyLaws):
        policy = GivesUp

    law = Laws.test_evicts_whatever_may_go.hypothesis.inner_test
    with pytest.raises(Exception, match="breaks law 1"):
        law(Laws(), runs=[(0, 4), (0, 4), (4, 4)], wanted=8, pinned=set())


def test_the_laws_catch_a_policy_that_learns_too_early() -> None:
    from kvloft.policies.arc import ARC

    class Hasty(ARC):
        name = "hasty"

        def admit(self, offer):
            super().admit(offer)
            super().commit(offer.keys, offer.request)

    class Laws(PolicyLaws):
        policy = Hasty

    law = Laws.test_failed_store_leaves_no_trace.hypothesis.inner_test
    with pytest.raises(AssertionError):
        law(Laws(), runs=[(0, 4), (0, 4), (4, 4), (8, 2)], failing=(4, 4))
