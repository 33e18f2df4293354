"""MovieLens-100k as tables of the data contract: requests, engagements and items."""

import datetime
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from thaw.components.datasets.parquet import list_column

LIKE_FROM = 4
"""A rating of this or more is a like."""
MAX_CANDIDATES = 8
"""Ratings of one request."""
MAX_TOKENS = 10
"""Tokens of one item: all genres first, then the year, then the words of the title."""
MIN_TITLES = 3
"""A word or a year in fewer titles than this is no token."""
DAY_S = 24 * 3600


@dataclass(frozen=True)
class Contract:
    """The tables of a data set. Those of a day exist for the days that have rows."""

    requests: dict[datetime.date, pa.Table]
    engagements: dict[datetime.date, pa.Table]
    items: pa.Table
    vocabulary: tuple[str, ...]
    """What each token stands for."""


def to_contract(ratings: str, users: str, items: str) -> Contract:
    """The data set's three files, as tables by UTC day.

    A request is a user's ratings of one UTC day in groups of up to 8, ordered by (second, item). Three in four ratings
    share their second with another of the same user, so a finer order isn't in the data. History is all that the user
    rated in earlier groups, those of the same day included and the group's own never, the most recent first. Users and
    items become rows in the order of their ids.

    Args:
        ratings: Text of `ml-100k.inter`: user, item, rating, second.
        users: Text of `ml-100k.user`: user, age, gender, occupation.
        items: Text of `ml-100k.item`: item, title, year, genres.

    Raises:
        ValueError: a file without the columns expected, or a rating of an unknown user or item.
    """
    user_columns = _columns("ml-100k.user", users, ("user_id", "age", "gender", "occupation"))
    item_columns = _columns("ml-100k.item", items, ("item_id", "movie_title", "release_year", "class"))
    columns = _columns("ml-100k.inter", ratings, ("user_id", "item_id", "rating", "timestamp"))
    user_order = np.argsort(user_columns["user_id"].astype(np.int64))
    item_order = np.argsort(item_columns["item_id"].astype(np.int64))
    user = _rows("user", columns["user_id"], user_columns["user_id"][user_order])
    item = _rows("item", columns["item_id"], item_columns["item_id"][item_order])
    second = columns["timestamp"].astype(np.float64).astype(np.int64)
    liked = columns["rating"].astype(np.float64) >= LIKE_FROM

    by_user = np.lexsort((item, second, user))
    user, item, second, liked = user[by_user], item[by_user], second[by_user], liked[by_user]
    context = _context({name: column[user_order] for name, column in user_columns.items()})
    content, vocabulary = _content({name: column[item_order] for name, column in item_columns.items()})
    return Contract(
        requests=_requests(user, item, second, liked, context),
        engagements=_engagements(user[liked], item[liked], second[liked]),
        items=content,
        vocabulary=vocabulary,
    )


def _columns(name: str, text: str, expected: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The columns of a tab-separated file whose header gives each name as `name:type`."""
    header, *lines = text.splitlines()
    names = [column.partition(":")[0] for column in header.split("\t")]
    if missing := [column for column in expected if column not in names]:
        raise ValueError(f"{name}: no column {', '.join(missing)}, only {', '.join(names)}")
    rows = [line.split("\t") for line in lines]
    if wrong := [number for number, row in enumerate(rows, start=2) if len(row) != len(names)]:
        raise ValueError(f"{name}, line {wrong[0]}: {len(rows[wrong[0] - 2])} fields, not {len(names)}")
    return {column: np.array([row[names.index(column)] for row in rows], dtype=object) for column in expected}


def _rows(what: str, ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Row number of each id, in the order of the known ones."""
    row = {known_id: number for number, known_id in enumerate(known)}
    if unknown := sorted(set(ids) - set(row)):
        raise ValueError(f"ml-100k.inter: {what} {unknown[0]} is not in ml-100k.{what}")
    return np.array([row[rated_id] for rated_id in ids], dtype=np.int64)


def _requests(
    user: np.ndarray, item: np.ndarray, second: np.ndarray, liked: np.ndarray, context: dict[str, np.ndarray]
) -> dict[datetime.date, pa.Table]:
    """Ratings in the order (user, second, item) become requests in the order (second, user), by day.

    A user's ratings are one run, and so are a group's: a group's history is the run from the user's first rating to
    the group's, backwards.

        user       u u u u u u u u u u u u v v v
        day        a a a a a a a a a a b b b b b
        group      0 0 0 0 0 0 0 0 1 1 2 2 3 3 3
        history of group 2: ratings 9, 8, ... 0
    """
    day = second // DAY_S
    position = np.arange(len(user))
    new_user = np.flatnonzero(np.diff(user, prepend=-1))
    new_day = np.flatnonzero((np.diff(user, prepend=-1) != 0) | (np.diff(day, prepend=-1) != 0))
    within_day = position - np.repeat(new_day, np.diff(new_day, append=len(user)))
    starts = np.flatnonzero(within_day % MAX_CANDIDATES == 0)
    ends = np.append(starts[1:], len(user))
    user_starts = np.repeat(new_user, np.diff(new_user, append=len(user)))[starts]

    in_time = np.lexsort((starts, user[starts], second[starts]))
    tables = {}
    for number, rank in _by_day(day[starts][in_time]):
        groups = in_time[rank]
        first, last, begin = starts[groups], ends[groups], user_starts[groups]
        shown = _spans(first, last)
        past = _spans(begin, first, backwards=True)
        asked = np.repeat(second[first], first - begin)
        table = {
            "request_id": pa.array(rank),
            "ts": pa.array(second[first]),
            "user_id": pa.array(user[first]),
            "history": list_column(first - begin, item[past]),
            "history_action": list_column(first - begin, liked[past].astype(np.int8)),
            "history_age_s": list_column(first - begin, asked - second[past]),
            "candidates": list_column(last - first, item[shown]),
            "like": list_column(last - first, liked[shown].astype(np.int8)),
        }
        tables[number] = pa.table(table | {name: pa.array(column[user[first]]) for name, column in context.items()})
    return tables


def _engagements(user: np.ndarray, item: np.ndarray, second: np.ndarray) -> dict[datetime.date, pa.Table]:
    in_time = np.lexsort((item, user, second))
    tables = {}
    for number, rank in _by_day(second[in_time] // DAY_S):
        rows = in_time[rank]
        tables[number] = pa.table(
            {
                "user_id": pa.array(user[rows]),
                "item_id": pa.array(item[rows]),
                "action": pa.array(["like"] * len(rows)),
                "ts": pa.array(second[rows]),
            }
        )
    return tables


def _context(users: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Categories of the users, by row: decade of age, gender and occupation in alphabetical order."""
    return {
        "age_decade": users["age"].astype(np.int64).astype(np.int8) // 10,
        "gender": np.unique(users["gender"].astype(str), return_inverse=True)[1].astype(np.int8),
        "occupation": np.unique(users["occupation"].astype(str), return_inverse=True)[1].astype(np.int8),
    }


def _content(items: dict[str, np.ndarray]) -> tuple[pa.Table, tuple[str, ...]]:
    """The item table, and its vocabulary: genres in alphabetical order, then words and years, the commonest first."""
    genres = [text.split() for text in items["class"]]
    words = [
        list(dict.fromkeys([year, *(word.strip("().,:;!?").lower() for word in title.split())]))
        for title, year in zip(items["movie_title"], items["release_year"])
    ]
    counts = Counter(word for title in words for word in title)
    common = sorted((word for word in counts if word and counts[word] >= MIN_TITLES), key=lambda w: (-counts[w], w))
    vocabulary = [f"genre {name}" for name in sorted({name for names in genres for name in names})] + common
    number = {token: index for index, token in enumerate(vocabulary)}
    tokens = [
        [number[token] for token in [f"genre {name}" for name in names] + title if token in number][:MAX_TOKENS]
        for names, title in zip(genres, words)
    ]
    table = pa.table(
        {
            "item_id": pa.array(np.arange(len(tokens))),
            "title": pa.array(items["movie_title"].tolist(), pa.string()),
            "tokens": pa.array(tokens, pa.list_(pa.int32())),
        }
    )
    return table, tuple(vocabulary)


def _by_day(day: np.ndarray) -> list[tuple[datetime.date, np.ndarray]]:
    """Each day since 1970 of an ascending column, with the positions that hold it."""
    days, firsts = np.unique(day, return_index=True)
    epoch = datetime.date(1970, 1, 1)
    return [
        (epoch + datetime.timedelta(days=int(number)), positions)
        for number, positions in zip(days, np.split(np.arange(len(day)), firsts[1:]))
    ]


def _spans(first: np.ndarray, last: np.ndarray, backwards: bool = False) -> np.ndarray:
    """Positions first ... last - 1 of each span in turn, or last - 1 ... first."""
    length = last - first
    step = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    return np.repeat(last - 1, length) - step if backwards else np.repeat(first, length) + step
