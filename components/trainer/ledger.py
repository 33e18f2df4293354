"""Which request was trained in which step on which rank."""

import io

import torch

from thaw.components import storage


class RowLedger:
    """Collects the request ids of a rank's batches; `write` puts all so far into one Parquet file.

    `ledger/rank-<rank>-from-<first step>.parquet`, columns step and request_id, is written anew each time.
    """

    def __init__(self, output_uri: str, rank: int, start_step: int) -> None:
        self._uri = storage.join(output_uri, "ledger", f"rank-{rank}-from-{start_step}.parquet")
        self._steps: list[torch.Tensor] = []
        self._ids: list[torch.Tensor] = []

    def add(self, step: int, request_ids: torch.Tensor) -> None:
        """Note the requests of a step, the padding request left out."""
        self._ids.append(request_ids)
        self._steps.append(torch.full_like(request_ids, step))

    def write(self) -> None:
        """Write all that was noted."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        none = torch.empty(0, dtype=torch.int64)
        columns = {"step": torch.cat([none, *self._steps]), "request_id": torch.cat([none, *self._ids])}
        file = io.BytesIO()
        pq.write_table(pa.table({name: column.numpy() for name, column in columns.items()}), file)
        storage.write_bytes(self._uri, file.getvalue())
