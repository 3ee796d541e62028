"""Words that the families are made of: common, short, unlike each other."""

from __future__ import annotations

NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Ivan", "Julia",
    "Kevin", "Laura", "Maria", "Nick", "Oscar", "Paula", "Quinn", "Rosa", "Simon", "Tina",
    "Victor", "Wendy", "Xavier", "Yara", "Zoe", "Albert", "Betty", "Carl", "Diana", "Eric",
)  # fmt: skip
THINGS = (
    "apple", "bread", "chair", "door", "egg", "flag", "glass", "hat", "ink", "jar",
    "key", "lamp", "milk", "nail", "oven", "pen", "queen", "ring", "soap", "table",
    "umbrella", "vase", "window", "yarn", "zebra", "basket", "candle", "drum", "engine", "feather",
    "garden", "hammer", "island", "jacket", "kettle", "ladder", "mirror", "needle", "onion", "rope",
    "bottle", "cable", "dress", "fork", "grape", "horse", "iron", "lemon", "motor", "piano",
)  # fmt: skip
SENTENCES = (
    "The weather was mild that day, and a light wind came from the sea.",
    "A train passed the old bridge and went on towards the hills.",
    "People sat on the benches by the river and talked about the harvest.",
    "The baker opened his shop early and swept the floor.",
    "In the afternoon it began to rain, and the streets were empty soon.",
    "A dog slept in front of the post office and did not mind anybody.",
    "The school bell could be heard as far as the mill.",
    "Later the clouds parted and the roofs shone in the sun.",
    "Two boats lay in the harbour and waited for the tide.",
    "The market closed, and the last carts rolled out of the square.",
)  # fmt: skip
