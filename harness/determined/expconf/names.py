"""Random names for experiments without a name."""

import secrets

_HOW = (
    "barely boldly briskly calmly clearly deeply duly early easily evenly fairly firmly freely "
    "gently gladly keenly kindly lightly loudly loyally mildly neatly nicely openly partly plainly "
    "politely promptly proudly purely quietly rarely really richly safely sharply simply slowly "
    "smoothly softly soundly steadily strongly surely swiftly truly vastly warmly wisely"
)
_WHAT = (
    "able ample apt brave bright calm careful clever crisp curious eager fair famous fine fond "
    "frank free fresh funny gentle glad golden grand happy honest humble jolly keen kind lively "
    "lucky merry modest neat noble patient polite proud quick quiet rapid ready sharp silent simple "
    "smart steady sunny tidy tough warm wise witty young"
)
_WHO = (
    "ant badger bat bear beaver bee bison camel cat cobra crab crane crow deer dingo dog dolphin "
    "dove duck eagle eel elk falcon ferret finch fox frog gecko gnu goat goose gull hare hawk hen "
    "heron horse ibex jay koala lark lemur lion lizard llama lynx magpie mole moose moth mouse newt "
    "otter owl panda parrot pony puma quail rabbit raven robin seal shark sheep shrew skunk sloth "
    "snail squid stork swan tapir tiger toad trout turtle viper walrus wasp whale wolf wombat wren yak"
)


def experiment_name() -> str:
    """A name such as ``Experiment (calmly-curious-otter)``.

    The system's generator draws it, because a name must not repeat with an experiment's seed.
    """
    return (
        f"Experiment ({'-'.join(secrets.choice(words.split()) for words in (_HOW, _WHAT, _WHO))})"
    )
