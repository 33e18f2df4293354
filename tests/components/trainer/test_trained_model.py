"""Whole jobs on worlds of one, two and three ranks, against each other and against the slow model."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from slow_model import SlowModel, read_rows
from small_log import NUM_ITEMS, NUM_USERS, job, make_config, write_window
from worlds import Ranks, run_world

from thaw.components.config import RunConfig
from thaw.components.jobs import JobSpec
from thaw.components.select_window.window import Window
from thaw.components.trainer.assembly import RANKER_FEATURES, build_ranker, build_tables, restore
from thaw.components.trainer.dense_state import dense_tensors
from thaw.components.trainer.epoch import train_epoch
from thaw.components.trainer.initial_rows import initial_rows
from thaw.components.trainer.pretrain import pretrain
from thaw.components.trainer.saving import rows_alone
from thaw.components.trainer.score import score

KINDS = {"pretrain": pretrain, "train": train_epoch, "score": score}
State = dict[str, torch.Tensor]


def do(ranks: Ranks, config: RunConfig, window: Window, specs: list[JobSpec]) -> list[tuple[dict[str, Any], State]]:
    """Figures of each job, and the rows and dense parameters that it leaves, whole on every rank."""
    done = []
    for spec in specs:
        figures = KINDS[spec.kind](spec, config, window, ranks)
        done.append((figures, {} if spec.kind == "score" else saved(ranks, config, spec)))
    return done


def saved(ranks: Ranks, config: RunConfig, spec: JobSpec) -> State:
    tables, ranker = build_tables(config, ranks, RANKER_FEATURES, 1.0), build_ranker(config, ranks.device)
    tensors = {**rows_alone(tables.tensors()), **dense_tensors(ranker)}
    load = spec.model_copy(update={"checkpoint_uri": f"{spec.output_uri}/model", "resume_uri": None})
    restore(load, config, tensors, ranks)
    whole = {name: tensor.clone() for name, tensor in dense_tensors(ranker).items()}
    for name, num_rows in (("user", NUM_USERS), ("item", NUM_ITEMS)):
        whole[f"table/{name}"] = torch.zeros(num_rows, config.model.dim)
    for name, shard in tables.shards():
        start = shard.metadata.shard_offsets[0]
        whole[f"table/{name}"][start : start + len(shard.tensor)] = shard.tensor
    for name in ("table/user", "table/item"):
        dist.all_reduce(whole[name], group=ranks.world)
    return whole


def chain(folder: Path, config: RunConfig, name: str) -> list[JobSpec]:
    def at(stage: str) -> str:
        return f"{name}-{stage}"

    def model(stage: str) -> str:
        return str(folder / at(stage) / "model")

    return [
        job(folder, config, "pretrain", at("backbone")),
        job(folder, config, "train", at("frozen"), policy="frozen", epoch=0, checkpoint_uri=model("backbone")),
        job(folder, config, "train", at("cotrain"), policy="cotrain", epoch=1, checkpoint_uri=model("frozen")),
        job(folder, config, "score", at("score"), checkpoint_uri=model("cotrain")),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def window(folder: Path) -> Window:
    return write_window(folder)


@pytest.fixture(scope="module")
def config(folder: Path) -> RunConfig:
    return make_config(folder)


@pytest.fixture(scope="module")
def worlds(folder: Path, config: RunConfig, window: Window) -> dict[int, list[tuple[dict[str, Any], State]]]:
    """The chain of jobs on worlds of 1, 2 and 3: figures and states of rank 0."""
    return {size: run_world(size, do, config, window, chain(folder, config, f"of-{size}"))[0] for size in (1, 2, 3)}


def steps_of(folder: Path, stage: str) -> dict[int, list[int]]:
    """Request ids by step, of all ranks' ledgers."""
    steps: dict[int, list[int]] = {}
    for part in sorted((folder / stage / "ledger").iterdir()):
        for row in pq.read_table(part).to_pylist():
            steps.setdefault(row["step"], []).append(row["request_id"])
    return steps


def test_losses_rows_and_parameters_are_the_same_on_any_number_of_ranks(
    worlds: dict[int, list[tuple[dict[str, Any], State]]],
) -> None:
    for size in (2, 3):
        for (figures, state), (expected_figures, expected) in zip(worlds[size], worlds[1]):
            assert figures["world_size"] == len(figures["peak_rss_bytes"]) == size
            for (step, loss), (expected_step, expected_loss) in zip(
                figures.get("loss_curve", []), expected_figures.get("loss_curve", []), strict=True
            ):
                assert (step, loss) == (expected_step, pytest.approx(expected_loss, abs=1e-6))
            assert state.keys() == expected.keys()
            for name, tensor in state.items():
                torch.testing.assert_close(
                    tensor, expected[name], rtol=0, atol=4e-6, msg=lambda text, name=name: f"{name}: {text}"
                )


def test_both_epochs_are_those_of_the_slow_model(
    worlds: dict[int, list[tuple[dict[str, Any], State]]], folder: Path, config: RunConfig, window: Window
) -> None:
    backbone, frozen, cotrain, _ = worlds[2]
    requests = {row["request_id"]: row for row in read_rows(window.training)}
    rows = {name: backbone[1][f"table/{name}"].clone() for name in ("user", "item")}
    for table_lr, log_q_weight, staleness, agrees in (
        (1.0, 1.0, 1, True),
        (1.0, 0.0, 1, False),
        (1.05, 1.0, 1, False),
        (1.0, 1.0, 0, False),
        (1.0, 1.0, 2, False),
    ):
        ranker = build_ranker(config, torch.device("cpu"))
        dense = {name: parameter.detach().clone() for name, parameter in ranker.named_parameters()}
        slow = SlowModel(config, window, dict(rows), dense, log_q_weight, staleness)
        errors = []
        for (figures, _), stage, lr in ((frozen, "of-2-frozen", 0.0), (cotrain, "of-2-cotrain", table_lr)):
            steps = steps_of(folder, stage)
            for step, loss in figures["loss_curve"]:
                batch = [requests[request_id] for request_id in steps[step - 1]]
                errors.append(abs(slow.step(batch, dense_lr=0.1, table_lr=lr) - loss))
            slow.settle()
        for kind, tensors in (("table", slow.tables), ("dense", slow.dense)):
            errors += [float((tensor - cotrain[1][f"{kind}/{name}"]).abs().max()) for name, tensor in tensors.items()]
        assert (max(errors) < 4e-6) == agrees
        assert agrees or max(errors) > 1e-4


def test_the_frozen_epoch_trains_the_dense_half_alone(worlds: dict[int, list[tuple[dict[str, Any], State]]]) -> None:
    for (_, backbone), (figures, frozen), (_, cotrain), _ in worlds.values():
        assert figures["checksums_before"] == figures["checksums_after"]
        for name in frozen:
            assert torch.equal(frozen[name], backbone[name]) == name.startswith("table/"), name
        assert all(not torch.equal(frozen[name], cotrain[name]) for name in ("table/user", "table/item"))


def settle(tables: State, owed: list[State], num_owed: int) -> None:
    """Make the updates that the tables still lack, but for the last ones."""
    with torch.no_grad():
        while len(owed) > num_owed:
            for name, update in owed.pop(0).items():
                tables[name] -= update


def test_pretraining_is_that_of_the_slow_pairs(
    worlds: dict[int, list[tuple[dict[str, Any], State]]], config: RunConfig, window: Window
) -> None:
    from thaw.components.trainer.reading import PairLoader

    pairs = [row for row in read_rows(window.engagements) if row["action"] == "click"]
    counts = torch.ones(NUM_ITEMS, dtype=torch.float64)
    for pair in pairs:
        counts[pair["item_id"]] += 1
    log_q = (counts / counts.sum()).log()
    for masks, agrees in ((True, True), (False, False)):
        tables = {
            name: initial_rows(config.seed, name, 0, rows, config.model.dim).double().requires_grad_()
            for name, rows in (("user", NUM_USERS), ("item", NUM_ITEMS))
        }
        losses = []
        owed: list[State] = []
        for epoch in range(2):
            for batch in PairLoader(config, window.engagements, 0, 1, epoch):
                users, items = batch.ids["user"].values().tolist(), batch.ids["item"].values().tolist()
                loss = torch.zeros((), dtype=torch.float64)
                for i, (user, item) in enumerate(zip(users, items)):
                    scores = {}
                    for j, (other_user, other_item) in enumerate(zip(users, items)):
                        if j == i or not masks or (other_user != user and other_item != item):
                            angle = torch.nn.functional.cosine_similarity(
                                tables["user"][user], tables["item"][other_item], dim=0
                            )
                            scores[j] = angle / 0.1 - log_q[other_item]
                    loss = loss + torch.logsumexp(torch.stack(list(scores.values())), 0) - scores[i]
                loss = loss / len(users)
                loss.backward()
                losses.append(loss.item())
                owed.append({name: 0.05 * table.grad for name, table in tables.items()})
                for table in tables.values():
                    table.grad = None
                settle(tables, owed, 1)
            settle(tables, owed, 0)
        figures, state = worlds[2][0]
        error = max(abs(loss - found) for loss, (_, found) in zip(losses, figures["loss_curve"], strict=True))
        for name, table in tables.items():
            length = torch.full((len(table), 1), 0.1, dtype=torch.float64)
            length[[pair[f"{name}_id"] for pair in pairs]] = 1
            expected = table.detach() / table.detach().norm(dim=1, keepdim=True) * length
            error = max(error, float((state[f"table/{name}"].double() - expected).abs().max()))
            assert figures["num_unseen_rows"][name] == int((length < 1).sum()) > 0
        assert (error < 1e-6) == agrees
        assert agrees or error > 1e-3


def test_scores_are_complete_and_the_same_on_any_number_of_ranks(
    worlds: dict[int, list[tuple[dict[str, Any], State]]], folder: Path, window: Window
) -> None:
    def predictions(size: int, name: str) -> list[dict[str, Any]]:
        parts = sorted((folder / f"of-{size}-score" / "predictions" / name).iterdir())
        assert [part.name for part in parts] == [f"part-{rank}.parquet" for rank in range(size)]
        return sorted(
            (row for part in parts for row in pq.read_table(part).to_pylist()),
            key=lambda row: (row["request_id"], row["item_id"], row["click_score"]),
        )

    for name, files in (("evaluation", window.evaluation), ("train", window.training)):
        logged = sorted(
            (row["request_id"], row["user_id"], item, row["click"][place], row["hide"][place])
            for row in read_rows(files)
            for place, item in enumerate(row["candidates"])
        )
        of_one = predictions(1, name)
        for size in worlds:
            rows = predictions(size, name)
            keys = ("request_id", "user_id", "item_id", "click_label", "hide_label")
            assert sorted(tuple(row[key] for key in keys) for row in rows) == logged
            for row, expected in zip(rows, of_one, strict=True):
                assert [row[f"{head}_score"] for head in ("click", "hide")] == pytest.approx(
                    [expected[f"{head}_score"] for head in ("click", "hide")], abs=1e-6
                )
