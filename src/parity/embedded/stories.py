"""Stories and Snippets: procedural text for the any-subset models, and the words it is made of.

Stories have five sentences about one of eight happenings; what the first sentences name (a thing, a place, a friend)
comes back as the last word, so the end follows from the beginning. Snippets are Python functions of two lines that a
comment describes, with unit tests.

    draw_story(seed, test) -> Story      draw_text(seed, test) -> words of packed documents
    draw_snippet(seed, test) -> Snippet

Everything is a function of its seed. Held out for `test`: of stories the pairs (happening, thing), of snippets the
pairs (first step, second step), whose SHA-256 is 0 modulo 8. A training text never holds one, a test text nothing else.
"""

from dataclasses import dataclass

import numpy as np

from parity.embedded import is_held_out

NAMES = {
    "anna": "she", "ben": "he", "clara": "she", "david": "he", "emma": "she", "felix": "he", "grace": "she",
    "hugo": "he", "iris": "she", "jonas": "he", "kate": "she", "leo": "he", "mia": "she", "noah": "he", "olga": "she",
    "paul": "he", "rosa": "she", "sam": "he", "tara": "she", "victor": "he",
}  # fmt: skip
ROOMS = ("kitchen", "garden", "attic", "cellar", "garage", "hall", "library", "bathroom")
FURNITURE = ("sofa", "table", "piano", "shelf", "bed", "cupboard", "desk", "stove")
FEELINGS = ("happy", "proud", "glad", "calm", "relieved", "delighted")
TROUBLES = ("worried", "sad", "angry", "nervous", "tired", "upset")
LOOKS = ("small", "old", "red", "heavy", "bright", "strange", "wooden", "green")
DAYS = ("monday", "tuesday", "friday", "saturday", "sunday")
TIMES = ("morning", "afternoon", "evening", "night")
SHOPS = ("market", "store", "bakery", "station", "museum")
WEATHER = ("rain", "snow", "wind", "fog", "storm")
VEHICLES = ("bus", "train", "boat", "bicycle", "car")

# An event is its name and the things it may be about, then a line for each of its five sentences, with the variants of
# the sentence, without full stops. {A} {B} are names, {a} {b} their pronouns, {O} is the thing.
EVENTS = """
lost: ring key wallet phone watch letter ticket camera scarf hat
one {time} {A} could not find the {O} / {A} had lost a {look} {O} / on {day} the {O} of {A} was gone
{a} looked in the {room} and under the {furniture} / {a} was {trouble} and searched the {room}
then {B} came to help with the search / {B} asked where {a} had seen it last / {A} called {B} for help
they found it behind the {furniture} / it was in the {room} under the {furniture} / {B} saw it near the {furniture}
{A} was {feeling} to have the {O} / {a} thanked {B} and kissed the {O} / now {a} never leaves home without the {O}

baking: cake bread pie soup pizza pudding salad stew
on {day} {A} wanted to make a {O} / {A} had never made a {O} before / {A} promised {B} a {look} {O}
{a} bought flour and butter at the {shop} / {a} went to the {shop} to buy what was missing
the {room} smelled wonderful all {time} / {a} burned the first one and was {trouble} / it took the whole {time}
{B} tasted it and asked for more / {B} said that it was very good / when it was ready {a} called {B}
soon nothing was left of the {O} / {A} was {feeling} about the {O} / everyone talked about the {O}

trip: beach forest castle lake mountain island village river
{A} and {B} went to the {O} by {vehicle} / on {day} {A} took the {vehicle} to the {O} / {A} dreamed of the {O}
the {vehicle} was late because of the {weather} / in the {time} the {weather} stopped / {a} left home in the {time}
{a} took a {look} bag and a map / {B} carried a {look} bag / they sang songs on the way
when they arrived {B} was {trouble} / at last {a} could rest and was {feeling} / there they met a {look} dog
they stayed all {time} at the {O} / {A} never forgot the {O} / {b} took a picture of the {O}

pet: dog cat rabbit parrot turtle horse hamster goat
{A} wanted a {O} for a long time / one {time} {A} found a {look} {O} in the {room} / {A} got a {O} from {B}
it was {trouble} and hid under the {furniture} / it liked to sleep on the {furniture} / at first {a} was {trouble}
{a} bought food for it at the {shop} / {B} brought some food from the {shop} / {a} gave it water and a {look} blanket
during the {weather} it ran away to the {room} / every {time} they played in the {room} / {B} came to play with it
{A} loves the {O} / {B} was {feeling} to see the {O} / now nobody can part {A} from the {O}

gift: book doll kite lamp vase drum clock sweater
{B} had a birthday on {day} / {A} forgot the birthday of {B} / it was the birthday of {B} and {A} was {trouble}
{A} went to the {shop} and chose a {look} {O} / {A} saw a {O} at the {shop} / {A} spent the {time} making a {O}
{a} hid it behind the {furniture} / {a} put it in a {look} box / {a} carried it home through the {weather}
{B} opened the box in the {room} / in the {time} {b} came to the {room} / {b} could not wait until {time}
{b} was {feeling} about the {O} / {B} thanked {A} for the {O} / {B} put a name on the {O}

contest: race game match concert play quiz dance
{A} trained for the {O} every {time} / on {day} there was a {O} in the village / {B} told {A} about a {O}
{a} was {trouble} because of {B} / {a} practiced in the {room} with {B} / {a} took the {vehicle} to be on time
then the {weather} began / many people came by {vehicle} / {a} wore a {look} shirt
{A} fell but stood up again / {B} was fast but {A} was faster / {a} made one mistake and laughed
in the end {A} won the {O} / {B} was {feeling} for {A} after the {O} / everyone enjoyed the {O}

repair: radio bicycle car roof window door piano boat
the {O} of {A} was broken / one {time} the {O} did not work / after the {weather} {A} had to repair the {O}
{a} took the tools from the {room} / {a} bought a {look} tool at the {shop} / {a} was {trouble} and called {B}
{B} knew what to do / {B} read about it in the {time} / it was hard and {a} was {trouble}
they worked until {time} / {a} used wood from the {room} / {B} held the {look} part and {A} turned it
{A} was {feeling} with the {O} / at last {a} could use the {O} / {B} was the first to try the {O}

garden: roses apples tomatoes beans carrots tulips pears
{A} planted {O} behind the house / in spring {A} wanted to grow {O} / {B} gave {A} some {O}
{a} watered them every {time} / the {weather} was hard on them / {a} read about them in a {look} book
a {look} goat ate a part of them / {B} helped {A} on {day} / {a} was {trouble} when nothing grew
in summer {a} could sell some at the {shop} / they grew taller than the {furniture} / soon {a} was {feeling}
{B} asked {A} for more {O} / {A} filled the {room} with {O} / the whole village knows these {O}
"""


HAPPENINGS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {}  # events by name: things, variants
for block in EVENTS.strip().split("\n\n"):
    first, *sentences = block.split("\n")
    name, _, things = first.partition(": ")
    HAPPENINGS[name] = tuple(things.split()), tuple(tuple(f"{s} ." for s in v.split(" / ")) for v in sentences)

# These steps of snippets are expressions by their words: first ones of x and y, or a list x, second ones of z and n.
PAIR_STEPS = {
    "add x and y": "x + y", "subtract y from x": "x - y", "multiply x and y": "x * y",
    "take the larger": "max ( x , y )", "take the smaller": "min ( x , y )",
}  # fmt: skip
LIST_STEPS = {
    "add up x": "sum ( x )", "count x": "len ( x )", "take the largest of x": "max ( x )",
    "take the smallest of x": "min ( x )", "take the first of x": "x [ 0 ]",
}  # fmt: skip
NEXT_STEPS = {
    "double it": "z * 2", "square it": "z * z", "negate it": "- z", "make it positive": "abs ( z )",
    "add {n}": "z + {n}", "subtract {n}": "z - {n}", "multiply by {n}": "z * {n}", "compare it with {n}": "z > {n}",
}  # fmt: skip
FUNCTIONS = ("f", "g", "h", "run", "solve", "work", "apply", "compute")
NUMBERS = tuple(str(i) for i in range(10))

MASK = "<mask>"
SEPARATOR = "<sep>"
LINE = "<line>"
INDENT = "<indent>"
LENGTH = 128  # a training text has this many words


@dataclass(frozen=True)
class Story:
    happening: str
    thing: str
    sentences: tuple[tuple[str, ...], ...]  # a story has five sentences, each a tuple of words


@dataclass(frozen=True)
class Snippet:
    steps: tuple[str, str]
    lines: tuple[tuple[str, ...], ...]  # four lines of words: definition, comment, first and second step
    tests: tuple[str, ...]  # the tests are Python asserts


def draw_story(seed: int, test: bool = False) -> Story:
    """Draw a story by a seed, whose pair (happening, thing) is held out if `test`, and is not otherwise."""
    rng = np.random.default_rng([seed, 1])
    while True:
        happening = str(rng.choice(list(HAPPENINGS)))
        objects, sentences = HAPPENINGS[happening]
        chosen_object = str(rng.choice(objects))
        if is_held_out(happening, chosen_object) == test:
            break
    first, second = rng.permutation(len(NAMES))[:2]
    A, B = list(NAMES)[first], list(NAMES)[second]
    kinds = {"room": ROOMS, "furniture": FURNITURE, "feeling": FEELINGS, "trouble": TROUBLES, "look": LOOKS}
    kinds |= {"day": DAYS, "time": TIMES, "shop": SHOPS, "weather": WEATHER, "vehicle": VEHICLES}
    lines = []
    for variants in sentences:
        words = {k: str(rng.choice(v)) for k, v in kinds.items()}
        line = str(rng.choice(variants)).format(A=A, B=B, a=NAMES[A], b=NAMES[B], O=chosen_object, **words)
        lines.append(tuple(line.split()))
    return Story(happening, chosen_object, tuple(lines))


def draw_snippet(seed: int, test: bool = False) -> Snippet:
    """Draw by a seed a Python function, whose two steps are a held-out pair if `test`, and are not otherwise, with four
    tests. It is executed to find the results that the tests expect."""
    rng = np.random.default_rng([seed, 2])
    while True:
        steps = PAIR_STEPS if rng.random() < 0.5 else LIST_STEPS
        first, second = str(rng.choice(list(steps))), str(rng.choice(list(NEXT_STEPS)))
        if is_held_out(first, second) == test:
            break
    n, name = str(rng.integers(1, 10)), str(rng.choice(FUNCTIONS))
    arguments = "x , y" if steps is PAIR_STEPS else "x"
    lines = (
        f"def {name} ( {arguments} ) :",
        f"{INDENT} # {first} , then {second.format(n=n)}",
        f"{INDENT} z = {steps[first]}",
        f"{INDENT} return {NEXT_STEPS[second].format(n=n)}",
    )
    inputs = [tuple(int(v) for v in rng.integers(-9, 10, 2 if steps is PAIR_STEPS else 4)) for _ in range(4)]
    calls = [f"{name}({', '.join(map(str, i))})" if steps is PAIR_STEPS else f"{name}({list(i)})" for i in inputs]
    scope: dict = {}
    written = join_source(tuple(w for line in lines for w in (*line.split(), LINE)))
    exec(written, scope)  # this is safe, because the text is made of the tables above only
    tests = tuple(f"assert repr({c}) == {repr(eval(c, scope))!r}" for c in calls)
    return Snippet((first, second), tuple(tuple(x.split()) for x in lines), tests)


def join_source(words: tuple[str, ...] | list[str]) -> str:
    """Join words to Python source: LINE becomes a line end, INDENT four spaces."""
    text = " ".join(words).replace(INDENT, "   ")  # an indent is three spaces and the one that joins the next word
    return "\n".join(line.removeprefix(" ").rstrip() for line in text.split(LINE)) + "\n"


def draw_document(seed: int, test: bool = False) -> list[str]:
    """Draw by a seed the words of a story (seven of ten times) or of a snippet, with LINE after each of its lines."""
    if np.random.default_rng([seed, 3]).random() < 0.7:
        return [w for s in draw_story(seed, test).sentences for w in s]
    return [w for line in draw_snippet(seed, test).lines for w in (*line, LINE)]


def draw_text(seed: int, test: bool = False, length: int = LENGTH) -> list[str]:
    """Draw the words of documents, a separator after each, and return the first `length` of them, as the paper packs
    its training text. test: whether the documents are held-out ones."""
    words: list[str] = []
    for k in range(length):
        words += [*draw_document(seed * 1_000 + k, test), SEPARATOR]
        if len(words) >= length:
            break
    return words[:length]


def list_words() -> tuple[str, ...]:
    """List all words of the grammars without repetition: mask, separator, LINE and INDENT first, the others sorted."""
    pools = (NAMES, NAMES.values(), ROOMS, FURNITURE, FEELINGS, TROUBLES, LOOKS, DAYS, TIMES, SHOPS, WEATHER, VEHICLES)
    code = [w for steps in (PAIR_STEPS, LIST_STEPS, NEXT_STEPS) for w in (*steps, *steps.values())]
    stories = [v for objects, sentences in HAPPENINGS.values() for s in (objects, *sentences) for v in s]
    phrases = [*(w for pool in pools for w in pool), *stories, *code, *FUNCTIONS, *NUMBERS]
    words = {w for phrase in phrases for w in phrase.split() if "{" not in w}
    words |= {"def", "(", ")", ":", ",", "#", "=", "return", "z", "then"}
    return (MASK, SEPARATOR, LINE, INDENT, *sorted(words))
