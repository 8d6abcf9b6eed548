"""The nouns of the small world: categories, names, places. Data only."""


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CATEGORIES: dict[str, tuple[str, ...]] = {
    "animal": _split(
        """dog cat horse cow lion tiger bear wolf fox rabbit mouse elephant giraffe zebra monkey sheep goat pig deer
        frog"""
    ),
    "bird": _split("robin eagle owl parrot swan crow sparrow penguin duck goose hawk dove"),
    "fish": _split("salmon trout tuna cod shark herring carp sardine eel pike"),
    "insect": _split("ant bee wasp beetle butterfly moth fly cricket mosquito ladybug"),
    "fruit": _split("apple banana orange pear grape cherry lemon mango peach plum kiwi melon"),
    "vegetable": _split("carrot potato onion cabbage spinach pea broccoli lettuce celery radish leek turnip"),
    "color": _split("red blue green yellow orange purple pink brown black white gray gold"),
    "drink": _split("water tea coffee milk juice lemonade cocoa soda cider wine"),
    "food": _split("bread cheese rice pasta soup pizza salad butter egg sandwich"),
    "sport": _split("football tennis basketball swimming running cycling golf hockey boxing rowing"),
    "instrument": _split("piano guitar violin drum flute trumpet cello harp clarinet organ"),
    "tool": _split("hammer saw screwdriver wrench drill axe shovel rake pliers chisel"),
    "vehicle": _split("car bus train bicycle truck boat ship plane tram van"),
    "job": _split("teacher doctor nurse farmer baker painter pilot sailor lawyer carpenter writer cook"),
    "shape": _split("circle square triangle rectangle oval star heart diamond pentagon hexagon"),
    "flower": _split("rose tulip daisy lily violet poppy sunflower orchid iris daffodil"),
    "tree": _split("oak pine maple birch willow beech cedar ash elm palm"),
    "planet": _split("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune"),
    "metal": _split("iron gold silver copper tin lead zinc nickel steel bronze"),
    "season": _split("spring summer autumn winter"),
    "room": _split("kitchen bedroom bathroom hall cellar attic office garage library nursery"),
    "body part": _split("head arm leg hand foot nose ear eye mouth knee"),
    "garment": _split("shirt coat hat scarf sock shoe glove dress skirt jacket"),
    "piece of furniture": _split("chair table bed sofa desk shelf lamp cupboard stool bench"),
}

PLURALS: dict[str, str] = {
    "fish": "fish", "season": "seasons", "body part": "body parts", "piece of furniture": "pieces of furniture",
}  # fmt: skip

COUNT_WORDS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)

NAMES = _split(
    """Ada Ben Clara David Emma Felix Grace Henry Ivy Jack Kate Leo Mia Noah Olivia Paul Quinn Rosa Sam Tina Uma
    Victor Wendy Xavier Yara Zoe Alice Bob Carol Daniel Ella Frank Gina Hugo Iris James Karen Liam Maria Nina
    Oscar Peter Rachel Simon Tom Vera Walter Anna Bruno Chloe Dora Erik Fiona George Hannah Ian Julia Kevin Laura
    Mark Nora Otto Pia Robert Sara Theo"""
)

OBJECTS = _split(
    """book pen key cup ball clock box bag coin map phone ring spoon bottle mirror candle basket ladder rope kite
    bell brush button card plate fork knife pillow blanket umbrella ticket letter paper pencil ruler camera radio
    wheel bucket broom towel soap comb purse watch crayon magnet puzzle doll drum hammer lamp chair table apple
    stone feather shell leaf"""
)

PLACES = _split(
    """forest river village garden mountain beach valley island castle farm bridge lake market desert cave meadow
    tower harbor field hill"""
)

ADJECTIVES = _split(
    """big small red blue green old new happy sad quick slow loud quiet bright dark warm cold soft hard clean round
    tall short brave kind clever gentle tiny heavy light sweet strong calm wild"""
)

VERBS = _split(
    """runs jumps sleeps sings reads writes walks swims dances laughs waits works plays eats cooks paints climbs
    listens watches smiles rests hides"""
)

ADVERBS = _split("quickly slowly quietly loudly happily gently today again outside often together early")

SYLLABLES = _split(
    """ba be bi bo bu da de di do du fa fe fi fo ga ge go gu ka ke ki ko ku la le li lo lu ma me mi mo mu na ne ni no
    nu pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we za ze zi zo"""
)


def plural(noun: str) -> str:
    """English plural of a noun of this world."""
    if noun in PLURALS:
        return PLURALS[noun]
    irregular = {"mouse": "mice", "goose": "geese", "foot": "feet", "sheep": "sheep", "deer": "deer", "knife": "knives",
                 "leaf": "leaves", "shelf": "shelves", "wolf": "wolves", "child": "children", "man": "men",
                 "woman": "women", "tooth": "teeth", "ox": "oxen", "person": "people", "loaf": "loaves",
                     "wife": "wives",
                 "potato": "potatoes", "tomato": "tomatoes", "half": "halves", "calf": "calves"}  # fmt: skip
    if noun in irregular:
        return irregular[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def with_article(noun: str) -> str:
    """`apple` -> `an apple`."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
