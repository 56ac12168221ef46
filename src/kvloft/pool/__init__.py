"""Who lives in host memory."""

from kvloft.pool.pool import BlockPool, LoadPlan, Lookup, StorePlan

__all__ = ["BlockPool", "LoadPlan", "Lookup", "StorePlan"]
