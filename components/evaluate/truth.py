"""The true probabilities of generated data. This is the only place of the product that reads them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thaw.components.evaluate.predictions import Predictions
from thaw.components.evaluate.rows import flatten, numbers, read_tables
from thaw.components.select_window.window import DataFile


def read_truth(files: Sequence[DataFile], heads: Sequence[str], predictions: Predictions) -> NDArray[np.float64]:
    """[N, H] the true probability of each scored row, joined by request id and the order of the candidates.

    Args:
        files: `request_id` and, for each head, `p_<head>`: a list as long as the candidates.
        heads: Names.
        predictions: What was scored.

    Raises:
        ValueError: a scored request has no truth, or a truth of another length.
    """
    requests, lengths, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty((0, len(heads)))]
    for file in files:
        for table in read_tables(file, ["request_id", *(f"p_{head}" for head in heads)]):
            columns = [flatten(table[f"p_{head}"]) for head in heads]
            request_ids = numbers(table["request_id"], pa.int64(), "request_id", file.uri)
            wanted = np.isin(request_ids, predictions.request_ids)
            num_values = columns[0][0]
            if any(not np.array_equal(num_values, other) for other, _ in columns):
                raise ValueError(f"{file.uri}: the probabilities of a request are not equally many for each head")
            of_wanted = np.repeat(wanted, num_values)
            requests.append(request_ids[wanted])
            lengths.append(num_values[wanted])
            values.append(
                np.stack(
                    [
                        numbers(c, pa.float64(), f"p_{head}", file.uri)[of_wanted]
                        for head, (_, c) in zip(heads, columns)
                    ],
                    axis=1,
                )
            )
    requests_R, lengths_R = np.concatenate(requests), np.concatenate(lengths)
    order = np.argsort(requests_R, kind="stable")
    if not np.array_equal(requests_R[order], predictions.request_ids):
        known = np.isin(predictions.request_ids, requests_R)
        lacking = predictions.request_ids[~known]
        raise ValueError(
            f"truth: {len(requests_R)} of {len(known)} scored requests are there"
            + (f"; request {lacking[0]} is not" if len(lacking) else ", some more than once")
        )
    if (wrong := np.flatnonzero(lengths_R[order] != predictions.num_candidates)).size:
        first = wrong[0]
        raise ValueError(
            f"truth: request {predictions.request_ids[first]} has {lengths_R[order][first]} probabilities and "
            f"{predictions.num_candidates[first]} scored candidates"
        )
    rows = np.argsort(np.repeat(requests_R, lengths_R), kind="stable")
    return np.concatenate(values)[rows]
