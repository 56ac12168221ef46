"""Contract suites that we ship: run them against your own policy, tier or manager.

They need `pip install 'kvloft[testing]'` (pytest and hypothesis).
"""
