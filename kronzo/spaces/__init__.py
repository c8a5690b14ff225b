"""Where to search: one file a family. A space maps small exact coordinates X to a move of one weight."""

from kronzo.spaces.base import Family, Space
from kronzo.spaces.dense import Dense
from kronzo.spaces.kronecker import Kronecker
from kronzo.spaces.lowrank import Diagonal, LowRank, Subspace

__all__ = ["Dense", "Diagonal", "Family", "Kronecker", "LowRank", "Space", "Subspace"]
