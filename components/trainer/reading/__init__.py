"""Parquet files to batches of jagged tensors: every row exactly once an epoch, on any number of ranks and workers."""

from thaw.components.trainer.reading.batches import MISSING_ID, PADDING_ID, PairBatch, RequestBatch
from thaw.components.trainer.reading.counts import count_ids
from thaw.components.trainer.reading.items import ItemContent, load_items
from thaw.components.trainer.reading.pairs import PairLoader
from thaw.components.trainer.reading.requests import RequestLoader

__all__ = [
    "MISSING_ID",
    "PADDING_ID",
    "ItemContent",
    "PairBatch",
    "PairLoader",
    "RequestBatch",
    "RequestLoader",
    "count_ids",
    "load_items",
]
