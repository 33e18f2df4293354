import re

from launcher_jobs import stage_job

from thaw.components.config import load

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def name_of(pipeline: str, stage: str = "train-frozen", attempt: int = 1) -> str:
    return stage_job(load("small", [f"name={pipeline}"]), stage, attempt, run_id=f"{pipeline}-20260302-060000").name


# https://github.com/kubeflow/trainer/issues/1101: a longer one leaves the job without status for ever.
def test_long_pipeline_names_give_short_valid_names_that_differ_and_repeat() -> None:
    long = ("My_Very-Long_Pipeline" * 5)[:89] + "-"
    other = long[:84] + "X" + long[85:]
    assert len(long) == len(other) == 90 and long[84] != "X"
    for pipeline in (long, other):
        name = name_of(pipeline)
        assert DNS_1035.fullmatch(name)
        assert len(name) <= 50
        assert len(f"{name}-worker-999") <= 63
        assert name == name_of(pipeline)
    assert name_of(long) != name_of(other)


def test_a_name_tells_pipeline_stage_and_attempt() -> None:
    assert re.fullmatch(r"small-train-cotrain-[0-9a-f]{10}-a12", name_of("small", "train-cotrain", 12))
    assert re.fullmatch(r"s-2-prepare-backbone-[0-9a-f]{10}-a1", name_of("S_2", "prepare-backbone"))


def test_names_stay_short_and_valid_in_late_attempts_of_long_stages() -> None:
    config = load("small", ["name=a-pipeline-of-twenty"])
    job = stage_job(config, "train-cotrain", 12345)
    assert len(job.name) <= 50
    assert DNS_1035.fullmatch(job.name)


def test_another_attempt_is_the_same_work_under_another_name() -> None:
    first = stage_job(load("small"))
    second = stage_job(load("small"), attempt=2, resume_uri="gs://bucket/train-frozen/attempt-1/checkpoints/step-20")
    assert first.spec_digest == second.spec_digest
    assert second.name == first.name.removesuffix("1") + "2"
    assert stage_job(load("small"), lease_timeout_s=600.0).name == first.name


def test_other_work_has_another_name() -> None:
    names = {
        stage_job(load("small")).name,
        stage_job(load("small", ["seed=1"])).name,
        stage_job(load("small"), run_id="small-2").name,
        stage_job(load("small"), window_uri="gs://bucket/other.json").name,
        stage_job(load("small"), checkpoint_uri="gs://bucket/other").name,
    }
    assert len(names) == 5


def test_the_specification_carries_the_name_and_lies_in_the_attempts_folder() -> None:
    job = stage_job(load("small"))
    assert job.spec.job == job.name
    assert job.spec_uri == "gs://bucket/train-frozen/attempt-1/job.json"
