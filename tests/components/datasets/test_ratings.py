import datetime

import numpy as np
import pyarrow as pa
import pytest

from thaw.components.datasets.ratings import MAX_CANDIDATES, MAX_TOKENS, Contract, to_contract

FIRST_DAY = datetime.date(1997, 12, 31)
FIRST_SECOND = int(datetime.datetime(1997, 12, 31, tzinfo=datetime.UTC).timestamp())
USERS = [(1, 24, "M", "writer"), (2, 9, "F", "artist"), (10, 73, "M", "artist"), (3, 31, "F", "none")]
ITEMS = [(item, f"The Word{item % 4} Tale, A", 1990 + item % 3, "Drama War" if item % 2 else "Comedy") for item in
         [*range(1, 60), 100]]  # fmt: skip


def tabbed(header: str, rows: list[tuple]) -> str:
    return "\n".join([header.replace(" ", "\t"), *("\t".join(map(str, row)) for row in rows)]) + "\n"


def convert(ratings: list[tuple[int, int, int, int]], items=ITEMS) -> Contract:
    return to_contract(
        ratings=tabbed("user_id:token item_id:token rating:float timestamp:float", ratings),
        users=tabbed("user_id:token age:token gender:token occupation:token", USERS),
        items=tabbed("item_id:token movie_title:token_seq release_year:token class:token_seq", items),
    )


@pytest.fixture(scope="module")
def ratings() -> list[tuple[int, int, int, int]]:
    """Every user rates most items within three days, several in one second, in a shuffled file."""
    random = np.random.default_rng(0)
    rows = []
    for user, *_ in USERS:
        for item in random.permutation([item for item, *_ in ITEMS])[: random.integers(30, 60)]:
            second = FIRST_SECOND + random.integers(0, 3) * 86400 + random.choice([0, 7, 3600, 86399])
            rows.append((user, int(item), int(random.integers(1, 6)), int(second)))
    return [rows[index] for index in random.permutation(len(rows))]


def slow_requests(ratings: list[tuple[int, int, int, int]]) -> list[dict]:
    """The definition of a request, row by row."""
    user_row = {user: row for row, user in enumerate(sorted(user for user, *_ in USERS))}
    item_row = {item: row for row, item in enumerate(sorted(item for item, *_ in ITEMS))}
    requests = []
    for user in user_row:
        rated = sorted((second, item, int(rating >= 4)) for who, item, rating, second in ratings if who == user)
        while rated:
            past = requests[-1]["past"] if requests and requests[-1]["user_id"] == user_row[user] else []
            day = rated[0][0] // 86400
            group = [row for row in rated if row[0] // 86400 == day][:MAX_CANDIDATES]
            rated = rated[len(group) :]
            requests.append(
                {
                    "ts": group[0][0],
                    "user_id": user_row[user],
                    "history": [item_row[item] for _, item, _ in past],
                    "history_action": [liked for *_, liked in past],
                    "history_age_s": [group[0][0] - second for second, *_ in past],
                    "candidates": [item_row[item] for _, item, _ in group],
                    "like": [liked for *_, liked in group],
                    "past": group[::-1] + past,
                }
            )
    requests = [{name: value for name, value in request.items() if name != "past"} for request in requests]
    return sorted(requests, key=lambda request: request["ts"])


def test_requests_are_those_of_the_definition(ratings):
    contract = convert(ratings)
    assert sorted(contract.requests) == [FIRST_DAY + datetime.timedelta(days=day) for day in range(3)]
    rows = pa.concat_tables(contract.requests.values()).to_pylist()
    expected = slow_requests(ratings)
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    assert [row["request_id"] for row in rows] == list(range(len(rows)))
    assert max(len(row["candidates"]) for row in rows) == MAX_CANDIDATES
    for day, table in contract.requests.items():
        assert {second // 86400 for second in table["ts"].to_pylist()} == {(day - datetime.date(1970, 1, 1)).days}


def test_a_request_never_has_its_own_ratings_in_its_history(ratings):
    """Nor any later one: with a group's own ratings the label would be in the input."""
    for table in convert(ratings).requests.values():
        for row in table.to_pylist():
            assert not set(row["candidates"]) & set(row["history"])
            assert all(age >= 0 for age in row["history_age_s"])


def test_every_rating_is_a_candidate_once_and_every_like_an_engagement(ratings):
    contract = convert(ratings)
    requests = pa.concat_tables(contract.requests.values()).to_pylist()
    shown = [(row["user_id"], item, like) for row in requests for item, like in zip(row["candidates"], row["like"])]
    assert len(shown) == len(set(shown)) == len(ratings)
    engagements = pa.concat_tables(contract.engagements.values()).to_pylist()
    assert {row["action"] for row in engagements} == {"like"}
    assert sorted((row["user_id"], row["item_id"]) for row in engagements) == sorted(
        (user, item) for user, item, like in shown if like
    )


def test_a_day_with_ratings_and_without_a_like_has_no_engagements():
    contract = convert([(1, 1, 5, FIRST_SECOND), (1, 2, 3, FIRST_SECOND + 2 * 86400)])
    assert list(contract.requests) == [FIRST_DAY, FIRST_DAY + datetime.timedelta(days=2)]
    assert list(contract.engagements) == [FIRST_DAY]


def test_the_day_changes_at_midnight_utc():
    contract = convert([(1, 1, 5, FIRST_SECOND + 86399), (1, 2, 5, FIRST_SECOND + 86400)])
    assert [table.num_rows for table in contract.requests.values()] == [1, 1]


def test_context_is_the_users():
    contract = convert([(user, 1, 5, FIRST_SECOND) for user, *_ in USERS])
    rows = contract.requests[FIRST_DAY].to_pylist()
    assert [(row["user_id"], row["age_decade"], row["gender"], row["occupation"]) for row in rows] == [
        (0, 2, 1, 2),
        (1, 0, 0, 0),
        (2, 3, 0, 1),
        (3, 7, 1, 0),
    ]


def test_tokens_are_genres_then_year_then_words_of_the_title():
    contract = convert([(1, 1, 5, FIRST_SECOND)])
    assert contract.vocabulary[:3] == ("genre Comedy", "genre Drama", "genre War")
    assert set(contract.vocabulary[3:]) == (
        {"the", "tale", "a", "1990", "1991", "1992", "word0", "word1", "word2", "word3"}
    )
    first, *_, last = contract.items.to_pylist()
    assert [contract.vocabulary[token] for token in first["tokens"]] == (
        ["genre Drama", "genre War", "1991", "the", "word1", "tale", "a"]
    )
    assert (first["item_id"], last["item_id"]) == (0, len(ITEMS) - 1)


def test_rare_words_are_no_tokens_and_long_titles_are_cut():
    words = " ".join(f"w{number}" for number in range(20))
    items = [(1, words, 1990, "War"), (2, words, 1990, "War"), (3, words, 1990, "War"), (4, "Once", 1950, "Drama")]
    contract = convert([(1, 1, 5, FIRST_SECOND)], items)
    tokens = contract.items["tokens"].to_pylist()
    assert [len(row) for row in tokens] == [MAX_TOKENS] * 3 + [1]
    assert "once" not in contract.vocabulary and "1950" not in contract.vocabulary


def test_a_file_of_another_form_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"ml-100k\.inter: item 77 is not in ml-100k\.item"):
        convert([(1, 77, 5, FIRST_SECOND)])
    with pytest.raises(ValueError, match=r"ml-100k\.user: no column gender, occupation, only user_id, age"):
        to_contract("user_id\n", "user_id:token\tage:token\n", "item_id\n")
    with pytest.raises(ValueError, match=r"ml-100k\.inter, line 2: 3 fields, not 4"):
        convert([(1, 1, 5)])
