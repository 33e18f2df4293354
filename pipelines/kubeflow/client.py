"""What the verbs ask of Kubeflow's server: experiments, runs and recurring runs.

Nothing is created twice: after a create whose answer was lost, the server is asked for the thing before it is sent
again.

Source: kfp and kfp_server_api 2.17.3.
"""

import datetime
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kfp_server_api
from kfp.client.set_volume_credentials import ServiceAccountTokenVolumeCredentials
from kfp_server_api import V2beta1RecurringRun as RecurringRun
from kfp_server_api import V2beta1Run as Run

from thaw.pipelines.kubeflow import connection
from thaw.pipelines.kubeflow.address import named_host, token
from thaw.pipelines.kubeflow.connection import REQUEST_TIMEOUT_S, ServerError

__all__ = ["RecurringRun", "Run", "Server", "ServerError", "as_json", "instant"]

PAGE_SIZE = 200
"""The most that the server gives."""


class Server:
    """A server of Kubeflow Pipelines.

    Args:
        host: Its URL. None: as KFP's client finds it, by KF_PIPELINES_ENDPOINT, in the cluster, or through kubectl's
            configuration.
        namespace: The user's, where the server has many users. None: that of KFP's saved context.

    Attributes:
        host: Its URL.
        multi_user: Whether it keeps apart users by their namespaces.
        version: Its version, as (2, 17); None where it does not say.

    Raises:
        ValueError: address or token can't be used.
        ServerError: it is not there, or refuses.
    """

    def __init__(self, host: str | None = None, namespace: str | None = None):
        volume, own = ServiceAccountTokenVolumeCredentials(), token()
        credentials = volume if Path(volume._token_path).exists() and own is None else None
        self._client = connection.Client(named_host(host), existing_token=own, credentials=credentials)
        self.host = self._client.host
        self._runs = self._client._run_api
        self._recurring = self._client._recurring_run_api
        self._experiments = self._client._experiment_api
        self.multi_user = bool(self._client.get_kfp_healthz().multi_user)
        self.namespace = namespace or self._client.get_user_namespace() or None
        self.version = _version(str(self._client.health.get("tag_name", "")))
        if self.multi_user and self.namespace is None:
            raise ServerError(f"{self.host} keeps apart users by their namespaces: give --namespace, of your profile")

    def run_url(self, run_id: str) -> str:
        """Where a person sees a run."""
        return f"{self._client._get_url_prefix()}/#/runs/details/{run_id}"

    def find_experiment(self, name: str) -> str | None:
        """The id of an experiment, or None."""
        found = self._experiment(name)
        return str(found.experiment_id) if found else None

    def experiment(self, name: str) -> str:
        """The id of an experiment, which is made where there is none."""
        if (found := self.find_experiment(name)) is not None:
            return found
        body = kfp_server_api.V2beta1Experiment(display_name=name, namespace=self.namespace)
        call = self._experiments.experiment_service_create_experiment
        try:
            created = self._create(
                f"make experiment {name}",
                lambda: call(experiment=body, _request_timeout=REQUEST_TIMEOUT_S),
                lambda: self._experiment(name),
                "experiment_id",
            )
        except ServerError:
            if (found := self.find_experiment(name)) is None:  # else others have made it meanwhile
                raise
            return found
        return str(created.experiment_id)

    def find_runs(self, name: str) -> list[Run]:
        """The runs of a name, in any experiment, the newest first."""
        call = self._runs.run_service_list_runs
        found = self._list(call, "runs", f"find run {name}", name, namespace=self.namespace, sort_by="created_at desc")
        return list(found)

    def runs_named_like(self, part: str) -> list[Run]:
        """The runs in whose names a text occurs, in any experiment, the newest first."""
        call = self._runs.run_service_list_runs
        found = self._list(
            call,
            "runs",
            f"list the runs of {part}",
            part,
            "IS_SUBSTRING",
            namespace=self.namespace,
            sort_by="created_at desc",
        )
        return list(found)

    def create_run(self, body: Run) -> Run:
        """Start a run. Where the answer is lost, a run of that name that was not there before is taken for it."""
        before = {run.run_id for run in self.find_runs(body.display_name)}

        def find() -> Run | None:
            return next((run for run in self.find_runs(body.display_name) if run.run_id not in before), None)

        call = self._runs.run_service_create_run
        what = f"start run {body.display_name}"
        return self._create(what, lambda: call(run=body, _request_timeout=REQUEST_TIMEOUT_S), find, "run_id")

    def delete_run(self, run: Run) -> None:
        """Delete a run, and end what it has begun."""
        call = self._runs.run_service_delete_run
        what = f"delete run {run.display_name} ({run.run_id})"
        self._forgo(what, lambda: call(run.run_id, _request_timeout=REQUEST_TIMEOUT_S))

    def run(self, run_id: str, patient: bool = False) -> Run:
        """How far a run is."""
        call = self._runs.run_service_get_run
        pauses_s = connection.PATIENT_PAUSES_S if patient else None
        what = f"tell of run {run_id}"
        found = self._ask(what, lambda: call(run_id, _request_timeout=REQUEST_TIMEOUT_S), pauses_s)
        return self._told(what, found, "run_id")

    def find_run(self, run_id: str) -> Run | None:
        """A run by its id; None where Kubeflow has forgotten it."""
        try:
            return self.run(run_id)
        except ServerError as error:
            if error.status != 404:
                raise
            return None

    def last_run(self, recurring: RecurringRun) -> Run | None:
        """The newest run that a recurring run has triggered."""
        call = self._runs.run_service_list_runs
        what = f"list the runs of {recurring.display_name}"
        runs = self._list(call, "runs", what, experiment_id=recurring.experiment_id, sort_by="created_at desc")
        for run in runs:
            if run.recurring_run_id == recurring.recurring_run_id:
                return run
            if run.created_at < recurring.created_at:
                break
        return None

    def recurring_runs(self, name: str | None = None) -> list[RecurringRun]:
        """The recurring runs, those of one name or all, the oldest first."""
        call = self._recurring.recurring_run_service_list_recurring_runs
        found = self._list(call, "recurring_runs", "list the recurring runs", name, namespace=self.namespace)
        return sorted(found, key=lambda recurring: recurring.created_at)

    def create_recurring_run(self, body: RecurringRun) -> RecurringRun:
        """Make a recurring run; where the answer is lost, a new one of its name and description is taken for it."""
        before = {recurring.recurring_run_id for recurring in self.recurring_runs(body.display_name)}

        def find() -> RecurringRun | None:
            for recurring in self.recurring_runs(body.display_name):
                if recurring.recurring_run_id not in before and recurring.description == body.description:
                    return recurring
            return None

        call = self._recurring.recurring_run_service_create_recurring_run
        what = f"make recurring run {body.display_name}"
        request = lambda: call(recurring_run=body, _request_timeout=REQUEST_TIMEOUT_S)  # noqa: E731
        return self._create(what, request, find, "recurring_run_id")

    def set_enabled(self, recurring: RecurringRun, enabled: bool) -> None:
        """Have a recurring run trigger runs, or not; one that is gone triggers none."""
        api = self._recurring
        call = (
            api.recurring_run_service_enable_recurring_run
            if enabled
            else api.recurring_run_service_disable_recurring_run
        )
        what = f"{'enable' if enabled else 'disable'} recurring run {recurring.display_name}"
        ask = self._ask if enabled else self._forgo
        ask(what, lambda: call(recurring.recurring_run_id, _request_timeout=REQUEST_TIMEOUT_S))

    def delete_recurring_run(self, recurring: RecurringRun) -> None:
        """Delete a recurring run. The runs that it has triggered go on.

        Without that policy Kubernetes deletes them along, in the middle of their training
        (https://github.com/kubeflow/pipelines/issues/12573). Servers have it as of 2.17.
        """
        call = self._recurring.recurring_run_service_delete_recurring_run
        self._forgo(
            f"delete recurring run {recurring.display_name}",
            lambda: call(recurring.recurring_run_id, propagation_policy="ORPHAN", _request_timeout=REQUEST_TIMEOUT_S),
        )

    def _experiment(self, name: str) -> Any:
        call = self._experiments.experiment_service_list_experiments
        found = self._list(call, "experiments", f"find experiment {name}", name, namespace=self.namespace)
        return next(found, None)

    def _list(
        self,
        call: Callable[..., Any],
        field: str,
        what: str,
        name: str | None = None,
        operation: str = "EQUALS",
        **arguments: Any,
    ) -> Iterator[Any]:
        if name is not None:
            predicate = {"operation": operation, "key": "display_name", "stringValue": name}
            arguments["filter"] = json.dumps({"predicates": [predicate]})
        given = {key: value for key, value in arguments.items() if value is not None}
        token = ""
        while True:
            given["page_token"] = token
            page = self._ask(what, lambda: call(page_size=PAGE_SIZE, _request_timeout=REQUEST_TIMEOUT_S, **given))
            for item in getattr(page, field) or ():
                if name in (None, item.display_name) or operation != "EQUALS":
                    yield item
            token = page.next_page_token
            if not token:
                return

    def _ask(self, what: str, request: Callable[[], Any], pauses_s: tuple[float, ...] | None = None) -> Any:
        return self._client.ask(what, request, pauses_s)

    def _forgo(self, what: str, request: Callable[[], Any]) -> None:
        """Send a request after which a thing is gone: it may be so already, by an earlier try or by others."""
        try:
            self._ask(what, request)
        except ServerError as error:
            if error.status != 404:
                raise

    def _told(self, what: str, thing: Any, key: str) -> Any:
        """The thing that an answer tells of. The model of the API lets one pass that lacks its id."""
        if not getattr(thing, key):
            raise ServerError(f"{self.host} did not {what}: its answer has no {key}")
        return thing

    def _create(self, what: str, request: Callable[[], Any], find: Callable[[], Any], key: str) -> Any:
        """The answer to a request that must take effect once; `key` is the name of its id."""
        for pause_s in connection.PAUSES_S:
            try:
                return self._told(what, self._client.call(what, request), key)
            except ServerError as error:
                if not error.is_transient:
                    raise
            time.sleep(pause_s)
            if (found := find()) is not None:
                return found
        return self._told(what, self._client.call(what, request), key)


def as_json(body: Run | RecurringRun) -> dict[str, Any]:
    """The JSON of a request, as it is sent."""
    document: dict[str, Any] = kfp_server_api.ApiClient().sanitize_for_serialization(body)
    return document


def _version(text: str) -> tuple[int, int] | None:
    match = re.match(r"v?([0-9]+)\.([0-9]+)", text)
    return (int(match[1]), int(match[2])) if match else None


def instant(moment: datetime.datetime) -> str:
    """A moment as the API takes it."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
