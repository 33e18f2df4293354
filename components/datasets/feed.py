"""A simulated feed whose every click has a known probability.

Items and users have latent vectors. A user who is shown an item acts on it with a probability that is logistic in: how
the two vectors agree (for clicks the item's own vector, for saves and hides a rotated one), how the item agrees with
what the user engaged with last, the item's quality, and a nonlinear effect of the item's style on the user's segment.
Items are drawn by popularity, users by activity; users' vectors drift from day to day, and a tenth of the items
launches in the window. The content of an item (patches and tokens) tells a part of its vector.

Shapes, as suffixes: I items, U users, R requests of a day, C candidates, H history, A actions, K latent numbers,
S segments, P numbers of all patches, T tokens, V vocabulary.

One seed gives one feed, whatever the number of threads and the width of the vector instructions: sums over latent
numbers have one fixed order (BLAS has many), and no choice hangs on the order in which a partial sort leaves its ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ACTIONS = ("click", "save", "hide")
NUM_CANDIDATES = 8
HISTORY_LENGTH = 16
NUM_PATCHES, PATCH_WIDTH = 4, 12
NUM_TOKENS, VOCABULARY_SIZE = 6, 400
NUM_SEGMENTS = 4

NUM_LATENT = 8
CONTENT_CORRELATION = 0.6
"""Between an item's vector and the part of it that its content tells."""
ITEM_ZIPF, USER_ZIPF = 0.9, 0.5
"""Exponents of popularity and activity over their ranks."""
NEW_ITEM_SHARE, NEW_ITEM_BOOST = 0.1, 3.0
PATCH_NOISE, TOKEN_NOISE = 0.5, 0.3
"""Standard deviation added to a patch; share of the tokens that are drawn at random."""
USER_BIAS_STD = 0.3
INTERCEPTS = np.array([-1.9, -3.3, -3.6])
AGREEMENT_WEIGHT = 2.2
RECENT_WEIGHTS = 0.6 * np.array([1.0, 0.5, 0.0])
NUM_RECENT = 4
"""Newest items of the history that make the recent interest."""
STYLE_WEIGHTS = 0.8 * np.array([1.0, 1.0, -0.5])
BIAS_WEIGHTS = np.array([1.0, 1.0, 0.0])

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class FeedSettings:
    """What tells one feed from another. Days are numbered from the first day of the window."""

    seed: int
    num_users: int
    num_items: int
    num_history_days: int
    """Days before the window."""
    num_window_days: int
    history_day_requests: int
    window_day_requests: int
    evaluation_day_requests: int
    """Requests of the one day that follows the window."""
    quality_std: float
    user_drift: float
    """Share of its standard deviation by which a user's vector moves in a day."""


BEFORE = -1_000_000
"""Launch day of the items that were always there."""


@dataclass(frozen=True)
class FeedItems:
    """Content and launch day of the items."""

    patches: NDArray[np.float32]
    """[I, P]"""
    tokens: Ints
    """[I, T]"""
    launch_day: Ints
    """[I]"""


@dataclass(frozen=True)
class FeedDay:
    """What one day's requests showed, and what the users did."""

    day: int
    user: Ints
    """[R]"""
    segment: Ints
    """[R]"""
    history: Ints
    """[R, H], the newest first, -1 where there is none."""
    candidates: Ints
    """[R, C]"""
    probability: Floats
    """[R, C, A]"""
    action: NDArray[np.bool_]
    """[R, C, A]"""

    @property
    def engaged(self) -> NDArray[np.bool_]:
        """[R, C], whether the candidate was clicked or saved."""
        return self.action[..., 0] | self.action[..., 1]


class Feed:
    """A feed of the given settings: its `items`, and its `days()` in order."""

    def __init__(self, settings: FeedSettings):
        self._settings = settings
        self._random = random = np.random.default_rng(settings.seed)
        num_items, num_users = settings.num_items, settings.num_users

        topic_IK = random.normal(size=(num_items, NUM_LATENT))
        own_IK = random.normal(size=(num_items, NUM_LATENT))
        item_IK = CONTENT_CORRELATION * topic_IK + np.sqrt(1 - CONTENT_CORRELATION**2) * own_IK
        self._quality_IA = settings.quality_std * random.normal(size=(num_items, len(ACTIONS)))
        popularity_I = (1.0 + random.permutation(num_items)) ** -ITEM_ZIPF
        new_I = random.random(num_items) < NEW_ITEM_SHARE
        launch_day_I = np.full(num_items, BEFORE)
        launch_day_I[new_I] = random.integers(0, settings.num_window_days + 1, new_I.sum())
        self._attraction_I = popularity_I * np.where(new_I, NEW_ITEM_BOOST, 1.0)
        self.items = FeedItems(self._patches(topic_IK), self._tokens(topic_IK), launch_day_I)
        self._style_IS = self._style(topic_IK)

        self._user_UK = random.normal(size=(num_users, NUM_LATENT))
        self._bias_U = USER_BIAS_STD * random.normal(size=num_users)
        self._segment_U = random.integers(0, NUM_SEGMENTS, num_users)
        self._log_activity_U = -USER_ZIPF * np.log(1.0 + random.permutation(num_users))
        identity_KK = np.eye(NUM_LATENT)
        save_KK = 0.8 * identity_KK + 0.6 * self._rotation()
        hide_KK = -0.6 * identity_KK + 0.8 * self._rotation()
        self._item_AIK = np.stack([item_IK, _product(item_IK, save_KK.T), _product(item_IK, hide_KK.T)])
        self._history_UH = np.full((num_users, HISTORY_LENGTH), -1)

    def days(self) -> Iterator[FeedDay]:
        """All days in order: those before the window, the window, and the evaluation day. To be called once."""
        settings = self._settings
        for day in range(-settings.num_history_days, settings.num_window_days + 1):
            if day < 0:
                yield self._next_day(day, settings.history_day_requests)
            elif day < settings.num_window_days:
                yield self._next_day(day, settings.window_day_requests)
            else:
                yield self._next_day(day, settings.evaluation_day_requests)

    def _next_day(self, day: int, num_requests: int) -> FeedDay:
        random, drift = self._random, self._settings.user_drift
        self._user_UK = np.sqrt(1 - drift**2) * self._user_UK + drift * random.normal(size=self._user_UK.shape)
        # Gumbel noise on the log weights, then the largest: a draw by weight without replacement.
        rank_U = self._log_activity_U + random.gumbel(size=len(self._log_activity_U))
        user_R = random.permutation(np.argsort(-rank_U, kind="stable")[:num_requests])
        cumulated_I = np.cumsum(self._attraction_I * (self.items.launch_day <= day))
        draw_RC = cumulated_I[-1] * random.random((len(user_R), NUM_CANDIDATES))
        candidates_RC = np.searchsorted(cumulated_I, draw_RC)

        history_RH = self._history_UH[user_R]
        probability_RCA = _logistic(self._logits(user_R, history_RH, candidates_RC))
        action_RCA = random.random(probability_RCA.shape) < probability_RCA
        shown = FeedDay(day, user_R, self._segment_U[user_R], history_RH, candidates_RC, probability_RCA, action_RCA)
        for candidate in range(NUM_CANDIDATES):
            engaged = shown.engaged[:, candidate]
            user = user_R[engaged]
            self._history_UH[user, 1:] = self._history_UH[user, :-1]
            self._history_UH[user, 0] = candidates_RC[engaged, candidate]
        return shown

    def _logits(self, user_R: Ints, history_RH: Ints, candidates_RC: Ints) -> Floats:
        user_RK = self._user_UK[user_R]
        recent_RN = history_RH[:, :NUM_RECENT]
        known_RN = recent_RN >= 0
        recent_RNK = np.where(known_RN[..., None], self._item_AIK[0][recent_RN], 0.0)
        recent_RK = recent_RNK.sum(axis=1) / np.sqrt(np.maximum(known_RN.sum(axis=1), 1))[:, None]
        style_RC = self._style_IS[candidates_RC, self._segment_U[user_R][:, None]]
        recent_RC = _agreement(recent_RK, self._item_AIK[0][candidates_RC])
        agreement_RCA = np.stack([_agreement(user_RK, item_IK[candidates_RC]) for item_IK in self._item_AIK], axis=-1)
        return (
            INTERCEPTS
            + BIAS_WEIGHTS * self._bias_U[user_R][:, None, None]
            + AGREEMENT_WEIGHT * agreement_RCA
            + RECENT_WEIGHTS * recent_RC[..., None]
            + self._quality_IA[candidates_RC]
            + STYLE_WEIGHTS * style_RC[..., None]
        )

    def _patches(self, topic_IK: Floats) -> NDArray[np.float32]:
        """Sine features of the topic, with noise."""
        width = NUM_PATCHES * PATCH_WIDTH
        weight_KP = 1.5 / np.sqrt(NUM_LATENT) * self._random.normal(size=(NUM_LATENT, width))
        phase_P = self._random.uniform(0, 2 * np.pi, width)
        noise_IP = PATCH_NOISE * self._random.normal(size=(len(topic_IK), width))
        return (np.sin(_product(topic_IK, weight_KP) + phase_P) + noise_IP).astype(np.float32)

    def _tokens(self, topic_IK: Floats) -> Ints:
        """Words drawn by their agreement with the topic, some of them at random."""
        word_VK = self._random.normal(size=(VOCABULARY_SIZE, NUM_LATENT))
        score_IV = 0.8 * _product(topic_IK, word_VK.T)
        tokens_TI = [(score_IV + self._random.gumbel(size=score_IV.shape)).argmax(axis=1) for _ in range(NUM_TOKENS)]
        tokens_IT = np.stack(tokens_TI, axis=1)
        noisy_IT = self._random.random(tokens_IT.shape) < TOKEN_NOISE
        tokens_IT[noisy_IT] = self._random.integers(0, VOCABULARY_SIZE, noisy_IT.sum())
        return tokens_IT

    def _style(self, topic_IK: Floats) -> Floats:
        """A nonlinear score of the topic for each segment, standardized over the items."""
        hidden_KH = 1.5 / np.sqrt(NUM_LATENT) * self._random.normal(size=(NUM_LATENT, 16))
        out_HS = 1.4 / 4 * self._random.normal(size=(16, NUM_SEGMENTS))
        style_IS = _product(np.tanh(_product(topic_IK, hidden_KH)), out_HS)
        return (style_IS - style_IS.mean(axis=0)) / style_IS.std(axis=0)

    def _rotation(self) -> Floats:
        """A random orthogonal matrix."""
        return np.linalg.qr(self._random.normal(size=(NUM_LATENT, NUM_LATENT)))[0]


def _product(a: Floats, b: Floats) -> Floats:
    """Matrix product in one fixed order of additions."""
    total = a[:, :1] * b[0]
    for k in range(1, len(b)):
        total += a[:, k, None] * b[k]
    return total


def _agreement(user_RK: Floats, item_RCK: Floats) -> Floats:
    total = user_RK[:, None, 0] * item_RCK[..., 0]
    for k in range(1, NUM_LATENT):
        total += user_RK[:, None, k] * item_RCK[..., k]
    return total / np.sqrt(NUM_LATENT)


def _logistic(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))
