"""Where in a batch an object is, and which tensors a batch has."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torchrec import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from thaw.components.trainer.semi_sync.inputs import follow, locate, spelled, tensors_of
from thaw.components.trainer.semi_sync.leaves import check_output, cut

KJT = KeyedJaggedTensor.from_lengths_sync(["f"], torch.tensor([1, 2]), torch.tensor([2]))


@dataclass
class Record:
    ids: Any
    other: Any = None


class Plain:
    def __init__(self, ids: Any) -> None:
        self.ids = ids


Pair = namedtuple("Pair", ["dense", "sparse"])


@pytest.mark.parametrize(
    ("batch", "path"),
    [
        (KJT, "batch"),
        (Record(KJT), "batch.ids"),
        (Plain([0, KJT]), "batch.ids[1]"),
        (Pair(torch.zeros(1), KJT), "batch[1]"),
        ((torch.zeros(1), {"x": Record(None, Plain({3: KJT}))}), "batch[1]['x'].other.ids[3]"),
        (Record(Record(KJT), KJT), "batch.other"),
    ],
)
def test_an_object_is_found_where_it_is_nearest(batch: Any, path: str) -> None:
    found = locate(batch, KJT)
    assert found is not None and spelled(found) == path and follow(batch, found) is KJT


def test_an_equal_object_is_not_the_same() -> None:
    other = KeyedJaggedTensor.from_lengths_sync(["f"], torch.tensor([1, 2]), torch.tensor([2]))
    assert locate(Record([other]), KJT) is None


def test_a_batch_that_contains_itself_is_walked_once() -> None:
    batch = Record(KJT)
    batch.other = batch
    assert locate(batch, torch.zeros(1)) is None and len(list(tensors_of(batch))) >= 2


def test_all_tensors_of_a_batch_are_found() -> None:
    x, y = torch.zeros(1), torch.zeros(2)
    found = list(tensors_of({"x": x, "rest": (Record(KJT), [y])}))
    for tensor in (x, y, KJT.values(), KJT.lengths()):
        assert any(one is tensor for one in found)


def test_leaves_keep_what_the_output_says_of_them_and_share_its_memory() -> None:
    jagged = JaggedTensor(torch.rand(3, 2), lengths=torch.tensor([1, 2]), weights=torch.tensor([4, 5, 6]))
    made = cut({"f": jagged}, True, lambda gate: None)
    assert isinstance(made.output, dict)
    leaf = made.output["f"]
    assert leaf.values().requires_grad and leaf.values().data_ptr() == jagged.values().data_ptr()
    assert leaf.lengths() is jagged.lengths() and leaf.weights() is jagged.weights()
    pooled = cut(KeyedTensor(["a", "b"], [1, 2], torch.rand(4, 3)), True, lambda gate: None)
    assert isinstance(pooled.output, KeyedTensor) and pooled.output["b"].shape == (4, 2)
    assert cut({"f": jagged}, False, lambda gate: None).output["f"] is jagged


@pytest.mark.parametrize(
    ("output", "kind"), [((1, 2), "a tuple of 2"), (torch.zeros(1), "a Tensor"), ({"f": 1}, "a dict")]
)
def test_another_kind_of_output_is_refused_by_name(output: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"towers.ebc gives {kind}"):
        check_output(output, "towers.ebc")
