"""Stories and snippets: known words and held-out pairs."""

from parity.embedded import stories


def test_texts_use_listed_words_and_hold_out_pairs():
    words = set(stories.list_words())
    for seed in range(150):
        for test in (False, True):
            assert set(stories.draw_text(seed, test)) <= words
            story = stories.draw_story(seed, test)
            assert stories.is_held_out(story.happening, story.thing) == test
            assert len(story.sentences) == 5
            assert story.thing in story.sentences[4]
            assert stories.is_held_out(*stories.draw_snippet(seed, test).steps) == test
    assert stories.draw_text(3) == stories.draw_text(3) != stories.draw_text(4)
