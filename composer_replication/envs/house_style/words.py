"""The words of house style's tasks. No two splits share a name, a text or a phrasing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from composer_replication.envs.contract import Split


class Words(NamedTuple):
    """The words of one split: stems and endings of file names, words of texts, requests by effect, and what joins them.

    In a request, `{0}` and `{1}` are the values of the step.
    """

    stems: tuple[str, ...]
    endings: tuple[str, ...]
    words: tuple[str, ...]
    requests: Mapping[str, tuple[str, ...]]
    joints: tuple[str, ...]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WORDS: Mapping[Split, Words] = {
    "train": Words(
        stems=_listed(
            "apple basil cedar daisy ember fable garnet harbor indigo jasper kettle lemon maple nectar olive pepper "
            "quartz raven saddle timber umbrella velvet walnut yonder zephyr anchor bronze copper dragon engine falcon "
            "glacier hammer island jungle kernel ladder marble needle orchid"
        ),
        endings=(".md", ".py"),
        words=_listed(
            "amber bright calm deep early fast green high idle jolly keen long mild new open plain quiet red slow tall"
        ),
        requests={
            "create": ("Create `{0}` with the text `{1}`.", "Make a file `{0}` that says `{1}`."),
            "append": ("Add the line `{1}` to `{0}`.", "Append `{1}` to `{0}`."),
            "rename": ("Rename `{0}` to `{1}`.", "Change the name of `{0}` to `{1}`."),
            "delete": ("Delete `{0}`.", "Remove the file `{0}`."),
        },
        joints=("Then", "After that:"),
    ),
    "dev": Words(
        stems=_listed(
            "almond beacon candle desert eagle forest garden hollow ivory jacket kitten lantern meadow nickel oyster "
            "pebble quiver ribbon silver thistle"
        ),
        endings=(".txt", ".js"),
        words=_listed("blank cold dry even firm grand heavy inner just kind light moist"),
        requests={
            "create": ("Write `{1}` into a new file `{0}`.",),
            "append": ("Put `{1}` at the end of `{0}`.",),
            "rename": ("Give `{0}` the name `{1}`.",),
            "delete": ("Erase `{0}`.",),
        },
        joints=("Next:",),
    ),
    "held_out": Words(
        stems=_listed(
            "acorn bishop canyon dolphin echo feather goblin hazel insect jewel koala lizard magnet noodle otter "
            "parrot quilt rocket salmon tunnel urchin violet walrus yogurt zipper arrow bucket castle dagger elbow "
            "fiddle guitar helmet igloo jersey kayak lobster mirror napkin oxygen"
        ),
        endings=(".rst", ".ts"),
        words=_listed(
            "alive bold crisp dark exact fresh gentle hasty icy joint known late modest narrow odd proud rapid smooth"
        ),
        requests={
            "create": ("Save a new file `{0}` containing `{1}`.", "I need a file `{0}` with `{1}` in it."),
            "append": ("Extend `{0}` by the line `{1}`.", "`{0}` should end with the line `{1}`."),
            "rename": ("Move `{0}` to `{1}`.", "`{0}` should be called `{1}`."),
            "delete": ("Get rid of `{0}`.", "`{0}` is not needed: drop it."),
        },
        joints=("Afterwards:", "Finally:"),
    ),
}
