"""Stories and snippets: known words, held-out pairs, programs that pass their tests."""

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
