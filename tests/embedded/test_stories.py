"""Stories and snippets: known words, held-out pairs, programs that pass their tests."""

from parity.embedded import stories


def test_stories_and_snippets_say_known_words_and_hold_out_their_pairs():
    known = set(stories.list_words())
    for seed in range(150):
        for test in (False, True):
            assert set(stories.draw_text(seed, test)) <= known
            s, code = stories.draw_story(seed, test), stories.draw_snippet(seed, test)
            assert stories.is_held_out(s.happening, s.thing) == test and stories.is_held_out(*code.steps) == test
            assert len(s.sentences) == 5 and s.thing in s.sentences[4]
    assert stories.draw_text(3) == stories.draw_text(3) != stories.draw_text(4)
