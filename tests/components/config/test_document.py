import json

import pytest
import yaml

from thaw.components.config import PRESETS, ConfigError, from_parameter, load, to_parameter


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid_and_travels_unchanged(preset):
    config = load(preset)
    assert from_parameter(to_parameter(config)) == config


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("training.global_batch_sise=8", "training.global_batch_sise: no such key"),
        ("colour=red", "colour: no such key"),
        ("training.global_batch_size=many", "training.global_batch_size: Input should be a valid integer, not 'many'"),
        ("training.global_batch_size=8.5", "training.global_batch_size"),
        ("training.num_workers='2'", "training.num_workers: Input should be a valid integer, not '2'"),
        ("data.window.date=2026-02-30", "data.window.date"),
        ("recipe.policies=[]", "recipe.policies"),
        ("recipe.policies=[frozen,frozen,cotrain]", "recipe.policies"),
        ("recipe.policies=[thawed]", "recipe.policies.0"),
        (
            "recipe.table_momentum=0.9",
            "recipe.table_momentum is 0.9: FBGEMM's fused SGD and row-wise Adagrad have none",
        ),
        ("recipe.table_weight_decay=0.1", "recipe.table_weight_decay is 0.1, and training.device is cpu"),
        ("recipe.table_lr=.inf", "recipe.table_lr: Input should be a finite number"),
        ("seed=99999999999999999999", "seed"),
        ("data.day_key=a/b", "data.day_key"),
        ("cluster.namespace='Bad NS'", "cluster.namespace"),
        ("training.num_lanes=1", "num_lanes 1 is less than the 2 readers"),
        ("training.sharding={users: row_wise}", "unknown tables ['users']"),
        ("backbone.fetch={uri: a}", "backbone: give either pretrain or fetch"),
        ("model.dim=33", "model: dim 33 is no multiple of num_heads 2"),
        ("data.columns.history_action=action", "history_action and num_history_actions go together"),
    ],
)
def test_a_fault_is_named_with_its_place(override, place):
    with pytest.raises(ConfigError) as fault:
        load("small", [override])
    assert place in str(fault.value)


def test_all_faults_are_named_at_once():
    with pytest.raises(ConfigError) as fault:
        load("small", ["training.sede=1", "model.dim=x", "name=1"])
    assert len(str(fault.value).splitlines()) == 3


@pytest.mark.parametrize("option", ["table_momentum=0.9", "table_weight_decay=0.1"])
def test_table_options_that_no_kernel_of_fused_sgd_knows_are_refused_on_cuda_too(option):
    with pytest.raises(ConfigError, match=f"recipe.{option.split('=')[0]} is .*FBGEMM's fused SGD"):
        load("small", ["training.device=cuda", "recipe.table_optimizer=sgd", f"recipe.{option}"])


def test_rows_of_a_width_that_the_cuda_kernels_do_not_take_are_refused():
    with pytest.raises(ConfigError, match="FBGEMM's CUDA kernels take multiples of 4"):
        load("small", ["training.device=cuda", "model.dim=6"])
    assert load("small", ["model.dim=6"]).model.dim == 6


@pytest.mark.parametrize("override", ["training", "=3", "name.first=x", "seed={"])
def test_a_malformed_override_is_quoted(override):
    with pytest.raises(ConfigError, match="--set"):
        load("small", [override])


def test_table_options_that_the_cpu_kernel_ignores_are_allowed_on_cuda():
    config = load("small", ["training.device=cuda", "recipe.table_weight_decay=0.1"])
    assert config.recipe.table_weight_decay == 0.1


def test_a_file_is_read_like_a_preset(tmp_path):
    document = json.loads(load("small").model_dump_json())
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(document))
    assert load(str(path)) == load("small")


@pytest.mark.parametrize(
    ("text", "word"), [("[1, 2]", "not a mapping"), ("a: [", "not a YAML document"), ("", "NoneType")]
)
def test_a_file_that_is_no_document_is_named(tmp_path, text, word):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=word) as fault:
        load(str(path))
    assert str(path) in str(fault.value)


def test_an_absent_file_is_named_with_the_presets():
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file.*demo-lite"):
        load("nowhere.yaml")


def test_nothing_that_kfp_rewrites_or_reads_is_in_the_parameter():
    config = load("small", ["data.uri='/opt/python3/{{$.inputs}}'", "cluster.env={A: 'python3 {{$'}"])
    text = to_parameter(config)
    assert "python3" not in text and "{{$" not in text
    assert from_parameter(text) == config


def test_numbers_stay_integers_on_the_way():
    document = json.loads(to_parameter(load("small")))
    assert type(document["training"]["num_nodes"]) is int


def test_a_document_that_is_too_long_to_travel_is_refused():
    with pytest.raises(ConfigError, match="at most 32000"):
        to_parameter(load("small", [f"cluster.env={{A: {'x' * 33000}}}"]))


def test_the_document_cannot_be_changed():
    config = load("small")
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1


def test_a_number_in_exponent_form_is_a_number():
    assert load("small", ["recipe.dense_lr=2e-3"]).recipe.dense_lr == 0.002
