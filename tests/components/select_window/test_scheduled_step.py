import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from day_folders import DATE

from thaw.components import storage
from thaw.components.config import RunConfig, to_parameter
from thaw.components.runs import create_run, read_run
from thaw.components.select_window.component import select_scheduled_window
from thaw.components.select_window.step import run
from thaw.components.select_window.window import FILE_NAME, read_window

Configure = Callable[..., RunConfig]


class Artifact:
    def __init__(self) -> None:
        self.uri = ""
        self.metadata: dict[str, Any] = {}


def scheduled(config: RunConfig, root: str, **changes: Any) -> Any:
    parameters = {
        "schedule": "daily",
        "scheduled_time": "2026-03-03T00:30:00Z",
        "cron": "0 30 0 * * *",
        "zone": "UTC",
        "lag_days": 1,
        "kfp_run": "kfp-1",
        "backend": "kubernetes",
        **changes,
    }
    door = select_scheduled_window.python_func
    return door(config=to_parameter(config), root=root, kind="whole", window=Artifact(), **parameters)


def test_the_scheduled_time_gives_the_date_and_the_record_has_it(
    configure: Configure, requests_uri: str, store_uri: str
) -> None:
    run_uri, fingerprint = scheduled(configure(), store_uri)
    assert run_uri == storage.join(store_uri, "runs", "daily-2026-03-02")
    window = read_window(storage.join(run_uri, "select-window", "attempt-1", FILE_NAME))
    assert (window.date, window.fingerprint) == (DATE, fingerprint)
    assert read_run(run_uri).extra == {
        "date": "2026-03-02",
        "backend": "kubernetes",
        "kind": "whole",
        "kfp_run": "kfp-1",
        "schedule": "daily",
        "scheduled_time": "2026-03-03T00:30:00Z",
        "cron": "0 30 0 * * *",
        "zone": "UTC",
        "lag_days": 1,
    }


def test_the_zone_decides_on_the_date(configure: Configure, requests_uri: str, store_uri: str) -> None:
    run_uri, _ = scheduled(configure(), store_uri, scheduled_time="2026-03-04T00:30:00Z", zone="America/Los_Angeles")
    assert read_run(run_uri).extra["date"] == "2026-03-02"


def test_a_retry_of_the_same_run_goes_on(configure: Configure, requests_uri: str, store_uri: str) -> None:
    first = scheduled(configure(), store_uri)
    assert scheduled(configure(), store_uri) == first


def test_another_run_of_the_same_date_is_refused_with_both_ids(
    configure: Configure, requests_uri: str, store_uri: str
) -> None:
    run_uri, _ = scheduled(configure(), store_uri)
    stages = storage.list_files(run_uri)
    with pytest.raises(ValueError, match=r"D = 2026-03-02 of schedule daily is claimed by Kubeflow's run kfp-1.*kfp-2"):
        scheduled(configure(), store_uri, kfp_run="kfp-2", scheduled_time="2026-03-03T18:30:00Z", cron="0 30 18 * * *")
    assert storage.list_files(run_uri) == stages


def test_a_date_that_was_submitted_by_hand_is_not_run_by_the_schedule(configure: Configure, store_uri: str) -> None:
    create_run(store_uri, "daily-2026-03-02", configure(), {"date": "2026-03-02"})
    with pytest.raises(ValueError, match=r"claimed by a run that was submitted at 20.*kfp-1"):
        scheduled(configure(), store_uri)


@pytest.mark.parametrize("store_uri", ["local"], indirect=True)
@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        ("scheduled_time", "[[ScheduledTime.2006-01-02]]"),
        ("scheduled_time", "[[CurrentTime]]"),
        ("scheduled_time", "{{$.pipeline_job_schedule_time_utc}}"),
        ("scheduled_time", ""),
        ("scheduled_time", " "),
        ("scheduled_time", "2026-02-30"),
        ("scheduled_time", "2026-02-30T00:30:00Z"),
        ("scheduled_time", "2026-3-1"),
        ("scheduled_time", "03/01/2026"),
        ("cron", "30 0 * * *"),
        ("cron", "{{$.cron}}"),
        ("cron", ""),
        ("zone", "Mars/Olympus"),
        ("zone", "America"),
        ("zone", "../UTC"),
        ("zone", ""),
        ("zone", "{{$.zone}}"),
        ("schedule", "{{$.schedule}}"),
        ("schedule", "a/b"),
        ("kfp_run", "{{$.pipeline_job_uuid}}"),
        ("kfp_run", ""),
        ("lag_days", -1),
    ],
)
def test_what_is_no_parameter_of_a_schedule_ends_the_step_before_it_lists_or_writes(
    configure: Configure, store_uri: str, parameter: str, text: Any
) -> None:
    Path(store_uri).mkdir()  # There is no log: listing it would be another error.
    with pytest.raises(ValueError) as caught:
        scheduled(configure(), store_uri, **{parameter: text})
    message = str(caught.value)
    assert str(text) in message
    assert parameter in message or text == "a/b"
    assert parameter != "scheduled_time" or ("YYYY-MM-DD" in message and f"'{text}'" in message)
    assert list(Path(store_uri).iterdir()) == []


@pytest.mark.parametrize("created_at", ["2026-03-03T00:30:07Z", "2026-03-04T00:29:59Z"])
def test_a_time_of_creation_in_the_place_of_the_scheduled_one_is_taken_for_the_tick_before_it_and_said_aloud(
    configure: Configure, requests_uri: str, store_uri: str, created_at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_uri, _ = scheduled(configure(), store_uri, scheduled_time=created_at)
    assert read_run(run_uri).extra["date"] == "2026-03-02"
    warnings = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"warning"' in line]
    assert f"{created_at} is no tick of '0 30 0 * * *'" in warnings[0]["message"]
    assert "2026-03-03T00:30:00+00:00" in warnings[0]["message"]


def test_a_lag_that_reaches_into_the_evaluation_days_is_said_aloud(
    configure: Configure, requests_uri: str, store_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduled(configure(), store_uri, scheduled_time="2026-03-02T00:30:00Z", lag_days=0)
    warnings = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"warning"' in line]
    assert "lag_days is 0" in warnings[0]["message"]


def test_a_run_without_a_record_gets_one(configure: Configure, requests_uri: str, store_uri: str) -> None:
    run_uri = storage.join(store_uri, "runs", "from-the-ui")
    run(to_parameter(configure()), run_uri, "2026-03-02", "kubernetes", Artifact())
    record = read_run(run_uri)
    assert record.config == configure().model_dump(mode="json")
    assert record.extra == {"date": "2026-03-02", "backend": "kubernetes", "kind": "whole"}


@pytest.mark.parametrize(
    ("override", "date", "kind", "words"),
    [
        ("seed=7", "2026-03-02", "whole", "seed: 0 in its record, 7 in this run"),
        ("seed=0", "2026-03-01", "whole", "date: '2026-03-01', .*begun for 2026-03-02"),
        ("seed=0", "2026-03-02", "backbone", "kind: 'backbone', .*begun for whole"),
    ],
)
def test_a_run_that_was_begun_otherwise_is_refused(
    configure: Configure, store_uri: str, override: str, date: str, kind: str, words: str
) -> None:
    run_uri = create_run(store_uri, "r1", configure(), {"date": "2026-03-02", "kind": "whole"})
    with pytest.raises(ValueError, match=words):
        run(to_parameter(configure(override)), run_uri, date, "local", Artifact(), kind)
    assert not storage.exists(storage.join(run_uri, "select-window"))


def test_a_uri_that_is_no_folder_of_a_run_is_refused(configure: Configure, store_uri: str) -> None:
    with pytest.raises(ValueError, match=r"run_uri: .*<root>/runs/<run id>"):
        run(to_parameter(configure()), storage.join(store_uri, "elsewhere"), "2026-03-02", "local", Artifact())


@pytest.mark.parametrize("text", ["1970-01-01T00:00:00Z", "1999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"])
def test_a_time_that_the_server_did_not_keep_is_refused_before_anything_is_claimed(
    configure: Configure, store_uri: str, text: str
) -> None:
    with pytest.raises(ValueError, match=f"scheduled_time: {text} is none of a schedule"):
        scheduled(configure(), store_uri, scheduled_time=text)
    assert storage.list_dirs(store_uri) == []
