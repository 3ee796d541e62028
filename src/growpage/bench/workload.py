"""The demo's workload: 32 requests of unequal demand, the same in every run.

Three families. ``short`` questions end after a sentence; ``list`` requests run long without looking
back; ``recall`` requests give facts first, run long, and want the facts again at the end, so that
what was evicted is missed. Lengths are the model's own: nothing forces a request to go on, and an
end-of-sequence token ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Literal, Protocol

Family = Literal["short", "list", "recall"]

MAX_NEW_TOKENS = 384
"""Tokens after which an answer that does not end by itself is cut."""

SHORT = (
    "In one sentence, what is gravity?",
    "How many minutes are there in an hour?",
    "In one sentence, what does a doctor do?",
    "Which ocean is the largest? Answer in one sentence.",
    "What is the freezing point of water?",
    "Rewrite in one short sentence: The library, which has been closed for repairs since the "
    "spring, will open again on the first of October.",
    "How many days are there in a week?",
    "What colour do you get when you mix blue and yellow?",
    "What is the chemical formula of water?",
    "In one sentence, why is the sky blue?",
)

LIST = (
    "Write a list of 30 kinds of fruit. For each, describe its colour, its taste and where it "
    "grows.",
    "Describe each month of the year in two or three sentences, from January to December.",
    "List the main organs of the human body and explain what each of them does.",
    "List 25 famous scientists and explain what each of them discovered.",
    "List 40 tips for a healthy life, each with an explanation.",
    "Write a long step by step guide to planting a vegetable garden, with at least 20 steps.",
    "List 20 musical instruments and describe how each of them makes its sound.",
    "Write a lesson plan for ten history lessons, with three goals for each lesson.",
    "List 20 ways to save energy at home and explain each of them in detail.",
    "List 50 countries and their capitals.",
    "Write a glossary of 30 computer terms with a definition for each.",
    "List 30 inventions that changed the world and explain each of them.",
)

RECALL = (
    "Remember these facts: Anna has a red bicycle. Ben lives in Oslo. Clara is 34 years old. "
    "David plays the violin. Emma works as a nurse. Write a long story about a day on which all "
    "five of them meet, and at the end of the story repeat every fact about each person.",
    "A train leaves Geneva at 8:15 with 212 passengers. It stops in Lausanne at 8:50, in Bern at "
    "10:05 and in Zurich at 11:12. The driver is Mr. Keller and the conductor is Ms. Rossi. The "
    "dining car is in the middle of the train. Tell the story of the journey in detail from the "
    "first stop to the last, and finish with the complete timetable and the names of the crew.",
    "Mrs. Patel runs a small shop. On Monday she sold 14 umbrellas, on Tuesday 9 lamps, on "
    "Wednesday 23 notebooks, on Thursday 5 clocks and on Friday 31 candles. Her cat is called "
    "Saffron and her brother is called Arjun. Write an article for the local newspaper about her "
    "week, with a long introduction about the town, and end with what she sold on each day.",
    "Patient file. Name: Oliver Grant. Age: 58. Allergies: penicillin and peanuts. Blood type: AB "
    "negative. Medication: 20 mg of lisinopril in the morning, 500 mg of metformin with dinner. "
    "Last visit: 12 May. Next visit: 3 September. Doctor: Helen Park. Phone: 555-0142. Explain in "
    "detail, for a new nurse, how to care for this patient through a whole day, from the morning "
    "to the night. Then repeat the complete file in your last paragraph.",
    "You are the guide of a museum with six halls. Hall 1 shows Egyptian masks. Hall 2 shows Roman "
    "coins. Hall 3 shows Chinese silk. Hall 4 shows maps of the moon. Hall 5 shows steam engines. "
    "Hall 6 shows musical instruments. The museum opens at 9:45, a ticket costs 12 dollars, and "
    "photographs are forbidden in hall 4. Lead a group of visitors through all six halls, with a "
    "long description of what they see in each, and before they leave, remind them of the contents "
    "of every hall, of the opening time and of the price.",
    "Here are the notes of a meeting. Date: 4 March. Room: 217. Budget: 18,500 dollars. Manager: "
    "Laura Chen. Client: Northwind Traders. Deadline: 30 June. Risks: late delivery, staff "
    "illness, rising prices. Write a detailed report of at least 400 words about the meeting. "
    "Finish the report with a table that repeats the date, the room, the budget, the manager, the "
    "client and the deadline.",
    "The hotel Blue Lagoon has 120 rooms, 3 restaurants, a pool on the roof and a garden with 15 "
    "palm trees. Breakfast is from 6:30 to 10:30. The code of the door is 7391. The wifi password "
    "is coconut. Write a long welcome letter to a guest that describes the hotel room by room and, "
    "in its last paragraph, repeats the opening hours, the door code and the wifi password.",
    "Project plan. Goal: a bridge over the river Tamsin. Length: 340 meters. Engineers: Sofia Lind "
    "and Marco Bauer. Start: 7 January. Steel: 2,150 tons. Concrete: 8,900 tons. Workers: 126. "
    "Cost: 48 million dollars. Opening: 22 November. Write a detailed report about the plan, the "
    "risks, the environment and the people who live near the river. Repeat all the numbers and "
    "names of the plan in the conclusion.",
    "Here is what five friends like. Tom likes chess and hates rain. Lucy likes tea and hates "
    "spiders. Omar likes football and hates onions. Nina likes painting and hates noise. Paul "
    "likes stars and hates early mornings. Plan a weekend for all of them together, hour by hour, "
    "explain each choice, and then say again what each friend likes and hates.",
    "Read the recipe: 300 grams of flour, 4 eggs, 120 grams of butter, 2 lemons, 180 grams of "
    "sugar, 1 spoon of baking powder; bake for 45 minutes at 175 degrees. Write a long blog post "
    "about the cake: its history, your memories of it, how it is made step by step and how to "
    "serve it. End the post with the complete list of ingredients, the time and the temperature.",
)

FAMILIES: dict[Family, tuple[str, ...]] = {"short": SHORT, "list": LIST, "recall": RECALL}

SIZE = sum(map(len, FAMILIES.values()))
"""Requests in the whole workload."""


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the workload needs."""

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        *,
        add_generation_prompt: bool,
        return_dict: Literal[False],
    ) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn."""


@dataclass(frozen=True)
class DemoRequest:
    """One request, as token ids, so that every policy gets exactly the same."""

    id: str
    family: Family
    prompt_token_ids: list[int]
    max_new_tokens: int

    @property
    def max_tokens(self) -> int:
        """Prompt and answer at its longest, in tokens."""
        return len(self.prompt_token_ids) + self.max_new_tokens


def demo_workload(
    tokenizer: ChatTokenizer, size: int = SIZE, max_new_tokens: int = MAX_NEW_TOKENS
) -> list[DemoRequest]:
    """The first ``size`` requests of the demo, the families taking turns.

    Args:
        tokenizer: the model's own, for its chat template.
        size: how many, 1 to :data:`SIZE`.
        max_new_tokens: tokens an answer may have.

    Raises:
        ValueError: ``size`` or ``max_new_tokens`` is out of range.
    """
    if not 1 <= size <= SIZE:
        raise ValueError(f"the demo has 1 to {SIZE} requests, not {size}")
    if max_new_tokens < 1:
        raise ValueError(f"an answer has at least 1 new token, not {max_new_tokens}")
    return [
        DemoRequest(
            id=name,
            family=family,
            prompt_token_ids=tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
            ),
            max_new_tokens=max_new_tokens,
        )
        for name, family, prompt in _in_turn(FAMILIES)[:size]
    ]


def load_tokenizer(model: Path) -> ChatTokenizer:
    """The tokenizer in a model's folder."""
    from transformers import AutoTokenizer

    tokenizer: ChatTokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    return tokenizer


def _in_turn(families: dict[Family, tuple[str, ...]]) -> Sequence[tuple[str, Family, str]]:
    """Names, families and prompts: one of each family, then the next of each."""

    def named(family: Family, prompts: Iterable[str]) -> Iterator[tuple[str, Family, str]]:
        for number, prompt in enumerate(prompts, start=1):
            yield f"{family}-{number:02}", family, prompt

    rounds = zip_longest(*(named(family, prompts) for family, prompts in families.items()))
    return [request for request in chain.from_iterable(rounds) if request is not None]
