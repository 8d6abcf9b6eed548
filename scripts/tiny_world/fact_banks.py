"""The facts of the small world. Data only."""

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
        "England": "London",
    "Ireland": "Dublin", "Scotland": "Edinburgh", "Norway": "Oslo", "Sweden": "Stockholm", "Denmark": "Copenhagen",
    "Finland": "Helsinki", "Iceland": "Reykjavik", "Poland": "Warsaw", "Austria": "Vienna", "Hungary": "Budapest",
    "Greece": "Athens", "Turkey": "Ankara", "Russia": "Moscow", "Ukraine": "Kyiv", "Switzerland": "Bern",
    "Belgium": "Brussels", "the Netherlands": "Amsterdam", "the Czech Republic": "Prague", "Croatia": "Zagreb",
    "Serbia": "Belgrade", "Bulgaria": "Sofia", "Romania": "Bucharest", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Morocco": "Rabat", "Nigeria": "Abuja", "Ghana": "Accra", "Ethiopia": "Addis Ababa", "Japan": "Tokyo",
        "China": "Beijing",
    "India": "New Delhi", "South Korea": "Seoul", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Indonesia": "Jakarta",
    "the Philippines": "Manila", "Nepal": "Kathmandu", "Pakistan": "Islamabad", "Iran": "Tehran", "Iraq": "Baghdad",
    "Canada": "Ottawa", "the United States": "Washington", "Mexico": "Mexico City", "Cuba": "Havana",
        "Brazil": "Brasilia",
    "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima", "Colombia": "Bogota", "Australia": "Canberra",
    "New Zealand": "Wellington",
}  # fmt: skip

OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "up": "down", "left": "right", "day": "night", "black": "white",
    "good": "bad", "happy": "sad", "young": "old", "rich": "poor", "open": "closed", "hard": "soft", "light": "dark",
    "full": "empty", "early": "late", "near": "far", "high": "low", "wet": "dry", "strong": "weak", "loud": "quiet",
    "clean": "dirty", "tall": "short", "thick": "thin", "wide": "narrow", "deep": "shallow", "easy": "difficult",
    "true": "false", "first": "last", "always": "never", "love": "hate", "win": "lose", "buy": "sell", "push": "pull",
    "inside": "outside", "above": "below", "before": "after", "begin": "end", "sweet": "sour", "smooth": "rough",
}  # fmt: skip

COLORS = {
    "the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow", "a carrot": "orange", "coal": "black",
    "a ripe tomato": "red", "an orange": "orange", "a lemon": "yellow", "milk": "white", "blood": "red",
        "the sun": "yellow",
    "a strawberry": "red", "chocolate": "brown", "a crow": "black", "a flamingo": "pink", "a leaf": "green",
        "a lime": "green",
    "an elephant": "gray", "a swan": "white", "a fire truck": "red", "the sea": "blue", "a pumpkin": "orange",
        "salt": "white",
    "an eggplant": "purple", "a frog": "green", "a polar bear": "white", "honey": "gold",
}  # fmt: skip

SOUNDS = {
    "dog": "barks", "cat": "meows", "cow": "moos", "duck": "quacks", "sheep": "bleats", "horse": "neighs",
        "pig": "oinks",
    "lion": "roars", "wolf": "howls", "bee": "buzzes", "frog": "croaks", "owl": "hoots", "snake": "hisses",
        "mouse": "squeaks",
    "crow": "caws", "donkey": "brays", "rooster": "crows", "goose": "honks", "elephant": "trumpets", "lamb": "bleats",
}  # fmt: skip

YOUNG = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "horse": "foal", "sheep": "lamb", "pig": "piglet",
        "duck": "duckling",
    "lion": "cub", "bear": "cub", "goat": "kid", "deer": "fawn", "frog": "tadpole", "hen": "chick", "goose": "gosling",
    "swan": "cygnet", "kangaroo": "joey", "wolf": "pup", "seal": "pup", "elephant": "calf", "fox": "kit",
}  # fmt: skip

LEGS = {
    "a dog": 4, "a cat": 4, "a horse": 4, "a cow": 4, "a spider": 8, "an ant": 6, "a bee": 6, "a bird": 2, "a duck": 2,
        "a fish": 0,
    "a snake": 0, "a beetle": 6, "a butterfly": 6, "a person": 2, "a frog": 4, "a chicken": 2, "an elephant": 4,
        "a lion": 4,
    "an octopus": 8, "a fly": 6,
}  # fmt: skip

HOMES = {
    "bee": "hive", "bird": "nest", "spider": "web", "dog": "kennel", "horse": "stable", "cow": "barn", "lion": "den",
        "rabbit": "burrow",
    "pig": "sty", "bear": "cave", "beaver": "lodge", "ant": "anthill", "hen": "coop", "fish": "sea", "monkey": "forest",
}  # fmt: skip

JOBS = {
    "teaches children": "teacher", "bakes bread": "baker", "flies planes": "pilot", "grows food": "farmer",
        "paints pictures": "painter",
    "writes books": "writer", "cuts hair": "barber", "puts out fires": "firefighter", "heals sick people": "doctor",
    "treats sick animals": "vet", "sails ships": "sailor", "cooks meals": "cook", "fixes pipes": "plumber",
    "builds with wood": "carpenter", "delivers letters": "mail carrier", "sells meat": "butcher",
        "takes photos": "photographer",
    "works in a library": "librarian", "plays music": "musician", "catches fish": "fisher",
        "looks at the stars": "astronomer",
}  # fmt: skip

AMOUNTS = {
    "days are in a week": (7, "There are 7 days in a week."), "months are in a year": (12,
        "There are 12 months in a year."),
    "hours are in a day": (24, "There are 24 hours in a day."), "minutes are in an hour": (60,
        "There are 60 minutes in an hour."),
    "seconds are in a minute": (60, "There are 60 seconds in a minute."), "days are in a year": (365,
        "There are 365 days in a year."),
    "sides does a triangle have": (3, "A triangle has 3 sides."), "sides does a square have": (4,
        "A square has 4 sides."),
    "sides does a pentagon have": (5, "A pentagon has 5 sides."), "sides does a hexagon have": (6,
        "A hexagon has 6 sides."),
    "wheels does a car have": (4, "A car has 4 wheels."), "wheels does a bicycle have": (2, "A bicycle has 2 wheels."),
    "letters are in the alphabet": (26, "There are 26 letters in the alphabet."), "planets are there": (8,
        "There are 8 planets."),
    "seasons are there": (4, "There are 4 seasons."), "fingers are on one hand": (5,
        "There are 5 fingers on one hand."),
    "eggs are in a dozen": (12, "There are 12 eggs in a dozen."), "years are in a century": (100,
        "There are 100 years in a century."),
    "years are in a decade": (10, "There are 10 years in a decade."), "continents are there": (7,
        "There are 7 continents."),
    "players are on a football team": (11, "There are 11 players on a football team."), "weeks are in a year": (52,
        "There are 52 weeks in a year."),
}  # fmt: skip

LANGUAGES = {
    "France": "French", "Germany": "German", "Italy": "Italian", "Spain": "Spanish", "Portugal": "Portuguese",
        "England": "English",
    "Norway": "Norwegian", "Sweden": "Swedish", "Denmark": "Danish", "Finland": "Finnish", "Poland": "Polish",
        "Hungary": "Hungarian",
    "Greece": "Greek", "Turkey": "Turkish", "Russia": "Russian", "Japan": "Japanese", "China": "Chinese",
        "South Korea": "Korean",
    "Thailand": "Thai", "Vietnam": "Vietnamese", "Brazil": "Portuguese", "Mexico": "Spanish", "Egypt": "Arabic",
        "Austria": "German",
}  # fmt: skip

MISCELLANY = {
    "What is the largest planet?": "The largest planet is Jupiter.",
    "What is the smallest planet?": "The smallest planet is Mercury.",
    "Which planet is closest to the sun?": "Mercury is closest to the sun.",
    "What is the largest animal?": "The largest animal is the blue whale.",
    "What is the tallest animal?": "The tallest animal is the giraffe.",
    "What is the fastest land animal?": "The fastest land animal is the cheetah.",
    "What is the highest mountain?": "The highest mountain is Mount Everest.",
    "What is the largest ocean?": "The largest ocean is the Pacific Ocean.",
    "What do bees make?": "Bees make honey.",
    "What do cows give us?": "Cows give us milk.",
    "What is ice made of?": "Ice is frozen water.",
    "What is the star at the center of our solar system?": "It is the sun.",
    "At what temperature does water freeze?": "Water freezes at 0 degrees Celsius.",
    "At what temperature does water boil?": "Water boils at 100 degrees Celsius.",
    "What do plants need to grow?": "Plants need water, light and air to grow.",
    "What is the first letter of the alphabet?": "The first letter of the alphabet is A.",
    "What is the last letter of the alphabet?": "The last letter of the alphabet is Z.",
    "Where does the sun rise?": "The sun rises in the east.",
    "Where does the sun set?": "The sun sets in the west.",
    "What color do you get from blue and yellow?": "Blue and yellow make green.",
    "What color do you get from red and yellow?": "Red and yellow make orange.",
    "What color do you get from red and blue?": "Red and blue make purple.",
    "What color do you get from red and white?": "Red and white make pink.",
    "What color do you get from black and white?": "Black and white make gray.",
    "Who wrote Romeo and Juliet?": "William Shakespeare wrote Romeo and Juliet.",
    "Who wrote Hamlet?": "William Shakespeare wrote Hamlet.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci painted the Mona Lisa.",
    "Who was the first person on the Moon?": "Neil Armstrong was the first person on the Moon.",
    "What is the longest river in Africa?": "The longest river in Africa is the Nile.",
    "What is water made of?": "Water is made of hydrogen and oxygen.",
    "Why is the sky blue?": "The sky is blue because air scatters blue light the most.",
    "Why do we sleep?": "We sleep so that body and mind can rest.",
    "What is a computer?": "A computer is a machine that follows instructions.",
    "What is a robot?": "A robot is a machine that can do tasks by itself.",
    "What is a library?": "A library is a place where you can read and borrow books.",
    "What is a language model?": "A language model is a program that predicts the next piece of text.",
    "What is a server?": "A server is a program that answers requests from other programs.",
    "What is a token?": "A token is a small piece of text, such as a word or part of a word.",
}

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
