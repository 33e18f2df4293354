"""The two data sets that a run can make for itself; README.md describes the data contract that both follow."""

from thaw.components.datasets.complete import DataSetError
from thaw.components.datasets.demo import generate_demo
from thaw.components.datasets.movielens import fetch_movielens

__all__ = ["DataSetError", "fetch_movielens", "generate_demo"]
