"""Can one user find out what another said by timing guesses? Through the whole node: a victim asks, an attacker with another API key asks the same text
and another of the same length, in random order, and times the first token. The same attack against a proxy whose applications share one key, which is
what a cache shared between users would be, must be seen: that shows that the measurement can."""
import json
import os
import random
import subprocess
import time

import httpx
import pytest

import roc
import support

PAIRS = int(os.environ.get("TIE_LEAK_PAIRS", 1000))
# A leak is looked for with many pairs; that one can be seen, and that one's own turns are faster, shows in fewer.
PROOF_PAIRS = max(40, PAIRS // 10)
WORDS = "river stone lamp field quiet bridge seven winter copper garden letter ocean paper violet engine market".split()
SETTLE_S = 0.03  # the victim's turn is written after its answer
LIMIT_S = float(os.environ.get("TIE_LEAK_LIMIT_S", 3600))  # of one measurement
PROGRESS_S = 15


class User:
    def __init__(self, place, key):
        self.http = httpx.Client(base_url=place.url, headers={"Authorization": f"Bearer {key}"}, timeout=60)

    def first_token_ms(self, text):
        body = {"model": support.MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 1, "stream": True}
        start, taken = time.perf_counter(), None
        with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if taken is None and line.startswith("data: {") and json.loads(line[6:])["choices"]:
                    taken = time.perf_counter() - start
        return taken * 1000


def text_of(rng):
    return " ".join(rng.choice(WORDS) for _ in range(130))


def paced(pairs, say, what, clock=time.monotonic):
    """Counts the pairs of a measurement, says how far it is, and ends it at its limit: fewer pairs than asked for would show less than the test says."""
    start = said = clock()
    for done in range(pairs):
        now = clock()
        if now - start > LIMIT_S:
            pytest.fail(f"{what}: {done} of {pairs} pairs in {LIMIT_S:.0f} s; set TIE_LEAK_LIMIT_S higher or TIE_LEAK_PAIRS lower")
        if done and now - said >= PROGRESS_S:
            said = now
            say(f"{what}: {done} of {pairs} pairs in {now - start:.0f} s, about {(now - start) / done * (pairs - done):.0f} s left")
        yield done


def attack(victim, attacker, pairs, say, what):
    rng = random.Random(time.time_ns())
    right, wrong = [], []
    for _ in paced(pairs, say, what):
        said, other = text_of(rng), text_of(rng)
        victim.first_token_ms(said)
        time.sleep(SETTLE_S)
        for guess in rng.sample([said, other], 2):
            (right if guess is said else wrong).append(attacker.first_token_ms(guess))
    return roc.area(right, wrong)


def report(what, measured, pairs, say):
    say(f"{what}: AUC {measured[0]:.4f}, 99.9 % interval {measured[1]:.4f} to {measured[2]:.4f}, {pairs} pairs")


def measure(what, victim, attacker, pairs, say):
    measured = attack(victim, attacker, pairs, say, what)
    report(what, measured, pairs, say)
    return measured


def test_a_guess_of_another_users_text_is_not_measurably_faster(node, say):
    measured = measure("another user's text, whole node", User(node, "alice"), User(node, "mallory"), PAIRS, say)
    assert measured[1] <= 0.5 <= measured[2]


def test_a_cache_shared_by_users_would_be_seen(node, say):
    measured = measure("users who share one key, whole node", User(node, "everybody"), User(node, "everybody"), PROOF_PAIRS, say)
    assert measured[0] > 0.9


def test_ones_own_next_turn_is_measurably_faster(node, say):
    what = "one's own text again, whole node"
    user, rng = User(node, "alice"), random.Random(5)
    first, again = [], []
    for _ in paced(PROOF_PAIRS, say, what):
        said = text_of(rng)
        first.append(user.first_token_ms(said))
        time.sleep(SETTLE_S)
        again.append(user.first_token_ms(said))
    measured = roc.area(again, first)
    report(what, measured, PROOF_PAIRS, say)
    assert measured[0] > 0.9


def test_the_engine_alone_and_a_variant_that_shares(say):
    program = support.BUILD / "tests/guess_timing_test"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    say(f"the engine alone: {2 * PAIRS} pairs, {LIMIT_S:.0f} s at most")
    try:
        done = subprocess.run([program], env=dict(os.environ, TIE_LEAK_PAIRS=str(2 * PAIRS)), capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the engine alone: {2 * PAIRS} pairs took more than {LIMIT_S:.0f} s; set TIE_LEAK_LIMIT_S higher or TIE_LEAK_PAIRS lower")
    say("\n".join(line for line in done.stdout.splitlines() if "measured" in line))
    assert done.returncode == 0, done.stdout[-3000:]


class Steady:
    """Stands in for a user: the same time for every text."""

    def first_token_ms(self, text):
        return 1.0


def test_a_measurement_says_how_far_it_is_and_ends_at_its_limit():
    now, said, taken = [0.0], [], []
    with pytest.raises(pytest.fail.Exception, match=rf"^w: 5 of 1000 pairs in {LIMIT_S:.0f} s; set TIE_LEAK_LIMIT_S"):
        for done in paced(1000, said.append, "w", clock=lambda: now[0]):
            taken.append(done)
            now[0] += 10 if done < 4 else LIMIT_S
    assert taken == [0, 1, 2, 3, 4]
    assert said == ["w: 2 of 1000 pairs in 20 s, about 9980 s left", "w: 4 of 1000 pairs in 40 s, about 9960 s left"]
    assert attack(Steady(), Steady(), 4, said.append, "w") == (0.5, 0.5, 0.5)


def test_the_curve_is_half_for_a_coin_and_one_for_the_separate():
    rng = random.Random(3)
    low, mixed = [[rng.random() for _ in range(500)] for _ in range(2)]
    value, under, over = roc.area(low, mixed)
    assert under < 0.5 < over and abs((over - value) / roc.DEVIATIONS - 0.0183) < 0.002
    assert roc.area(low, [v + 2 for v in mixed])[0] == 1
