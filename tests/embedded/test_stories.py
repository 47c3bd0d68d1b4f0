"""Stories and snippets: known words, held-out pairs, programs that pass their tests."""

import pytest

from parity.embedded import stories


def test_stories_and_snippets_say_known_words_and_hold_out_their_pairs():
    known = set(stories.vocabulary())
    for seed in range(150):
        for test in (False, True):
            assert set(stories.text(seed, test)) <= known
            s, code = stories.story(seed, test), stories.snippet(seed, test)
            assert stories.held_out(s.happening, s.thing) == test and stories.held_out(*code.steps) == test
            assert len(s.sentences) == 5 and s.thing in s.sentences[4]
    assert stories.text(3) == stories.text(3) != stories.text(4)


def test_snippets_pass_their_own_tests():
    for seed in range(60):
        code = stories.snippet(seed, bool(seed % 2))
        program = stories.source([w for line in code.lines for w in (*line, stories.LINE)])
        scope: dict = {}
        exec(program, scope)
        for test in code.tests:
            exec(test, scope)
        with pytest.raises(AssertionError):
            for test in code.tests:
                exec(test, {**scope, code.lines[0][1]: lambda *a: None})
