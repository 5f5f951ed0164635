"""The fifteen tasks of the Chomsky hierarchy, by its levels. Deletang et al. 2022, arXiv 2207.02098.

As published, models train on lengths 1 to 40 and are examined on 41 to 500.
"""

from adapos.bench.tasks.chomsky import context_free, context_sensitive, regular

__all__ = ["context_free", "context_sensitive", "regular"]
