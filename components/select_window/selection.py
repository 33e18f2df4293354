"""From a date to the window document: which days are wanted, which are there, which files they hold."""

import datetime
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.refused import RefusedError
from thaw.components.select_window.files import BrokenFileError, list_data_files, pin
from thaw.components.select_window.logs import DayFolder, Log, item_columns, list_day, wanted_logs
from thaw.components.select_window.window import DataFile, Window, fingerprint

NUM_THREADS = 16
"""Folders and files that are asked for at once."""


MAX_FAULTS = 10
"""Broken files that one message names."""


class WindowError(ValueError):
    """Days or files of the window are not there, or broken. The message lists all of them."""


def select(config: RunConfig, date: datetime.date) -> Window:
    """The window of a date: the wanted days that are there, and every file of theirs, pinned.

    Nothing is written. Of files on this machine everything is read, for the digest; of others the footers.

    Args:
        config: The run's document, with `data.uri`.
        date: D, the first day that training never reads.

    Raises:
        WindowError: days are missing or empty beyond the allowance, or files are broken.
        StorageError: the store cannot be read.
    """
    data = config.data
    if data.uri is None:
        raise RefusedError("data.uri is not set: name the folder of the data set")
    logs = wanted_logs(config, data.uri, date)
    names = {log.uri: frozenset(storage.list_dirs(log.uri)) for log in logs}
    items, ignored = list_data_files(storage.join(data.uri, data.items.path)) if data.items else ([], [])
    if data.items and not items:
        raise WindowError(f"data.items.path: no Parquet file at {storage.join(data.uri, data.items.path)}")
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        listings = [pool.submit(list_day, log, day, names[log.uri]) for log in logs for day in log.days]
        folders = [listing.result() for listing in listings]
        futures = [
            pool.submit(pin, file, folder.day, folder.log.columns) for folder in folders for file in folder.files
        ]
        futures += [pool.submit(pin, file, None, item_columns(data.items)) for file in items if data.items]
        pins = _pinned(pool, futures)
    for folder in folders:
        if not folder.absence and not any(pins[file.path].num_rows for file in folder.files):
            folder.absence = "0 rows"
    _check_missing(logs, folders)

    def present(name: str) -> list[DayFolder]:
        return [folder for folder in folders if folder.log.name == name and not folder.absence]

    def missing_days(name: str) -> tuple[datetime.date, ...]:
        return tuple(folder.day for folder in folders if folder.log.name == name and folder.absence)

    def files(name: str) -> tuple[DataFile, ...]:
        return tuple(pins[file.path] for folder in present(name) for file in folder.files)

    by_log = {log.name: files(log.name) for log in logs} | {"items": tuple(pins[file.path] for file in items)}
    return Window(
        date=date,
        training_days=tuple(folder.day for folder in present("training")),
        evaluation_days=tuple(folder.day for folder in present("evaluation")),
        engagement_days=tuple(folder.day for folder in present("engagements")),
        missing_days=missing_days("training"),
        missing_engagement_days=missing_days("engagements"),
        ignored_names=sum(folder.num_ignored for folder in folders) + len(ignored),
        fingerprint=fingerprint([file for group in by_log.values() for file in group], data.uri),
        **by_log,
    )


def _pinned(pool: ThreadPoolExecutor, futures: Sequence[Future[DataFile]]) -> dict[str, DataFile]:
    """The pinned files by URI, or one error that names the broken ones."""
    pins, faults = {}, []
    try:
        for future in futures:
            try:
                file = future.result()
                pins[file.uri] = file
            except BrokenFileError as fault:
                faults.append(str(fault))
    except OSError:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    if faults:
        more = [f"and {len(faults) - MAX_FAULTS} more files"] if len(faults) > MAX_FAULTS else []
        raise WindowError("\n".join([*faults[:MAX_FAULTS], *more]))
    return pins


def _check_missing(logs: Sequence[Log], folders: Sequence[DayFolder]) -> None:
    limits = []
    for log in logs:
        num_missing = sum(folder.log is log and folder.absence is not None for folder in folders)
        if num_missing > log.max_missing_days or num_missing == len(log.days):
            rule = f"{log.allowance} is {log.max_missing_days}" if log.allowance else "none may be missing"
            limits.append(f"{num_missing} of the {len(log.days)} days in {log.uri}, where {rule}")
    if limits:
        missing = sorted((folder for folder in folders if folder.absence), key=lambda folder: folder.day)
        days = ", ".join(f"{folder.day} ({folder.log.name}: {folder.absence})" for folder in missing)
        raise WindowError(f"days are missing or empty: {days}. That is {'; '.join(limits)}")
