"""Find the best plans."""

from ferrule.plan.search.apart import search_apart, with_apart
from ferrule.plan.search.best import SearchResult, best_plan, search

__all__ = ["SearchResult", "best_plan", "search", "search_apart", "with_apart"]
