"""The prompt for questions about a passage, with three examples."""

from collections.abc import Sequence

from beir_cocodr.generation.query_kinds import QUERY_KINDS
from beir_cocodr.generation.settings import PLACEHOLDER

INSTRUCTION = (
    "Someone searches a collection of documents. Read the passage, and write one question or query "
    "that this person could have typed, that the passage answers, and that needs no knowledge of "
    "the passage to be understood. Use the language of the passage but your own words, and do not "
    "mention the passage. Write the query alone, on one line."
)

#: Passages of three fields and queries as people type them, long and short.
EXAMPLES = (
    (
        "Condensing boilers cool the exhaust until its water vapour turns liquid, and return the "
        "heat that this sets free to the heating circuit. They reach their rated efficiency only "
        "if the returning water is colder than about 55 degrees.",
        "why does my boiler use more gas when the radiators run very hot",
    ),
    (
        "The clause lets either side leave the lease after the third year, provided that the other "
        "receives a signed letter six months ahead. Rent that was paid for the time afterwards is "
        "returned within thirty days.",
        "How much notice do I have to give to end the rental early?",
    ),
    (
        "Sardines spoil faster than leaner fish because their fat reacts with oxygen. Packing "
        "them in ice slows the bacteria, but only an airtight wrap keeps them from turning rancid.",
        "storing oily fish without rancid taste",
    ),
)

_FORM = "Write it alone, on one line."


def few_shot_prompt(kind: str | None = None) -> str:
    """Return the prompt of a model that continues a text, with the placeholder of the passage.

    Args:
        kind: A name in :data:`~beir_cocodr.generation.query_kinds.QUERY_KINDS`. Default: a query as
            people type them.
    """
    label = "Query" if kind is None else QUERY_KINDS[kind].label
    instruction, examples = _shown(kind)
    parts = [f"Passage: {passage}\n{label}: {query}" for passage, query in examples]
    return "\n\n".join([instruction, *parts, f"Passage: {PLACEHOLDER}\n{label}:"])


def few_shot_messages(passage: str, kind: str | None = None) -> list[dict[str, str]]:
    """Return the conversation with a model that is asked for a query of a passage.

    Args:
        passage: The passage.
        kind: See :func:`few_shot_prompt`.
    """
    instruction, examples = _shown(kind)
    messages = [{"role": "system", "content": instruction}]
    for example, query in examples:
        messages.append({"role": "user", "content": f"Passage: {example}"})
        messages.append({"role": "assistant", "content": query})
    messages.append({"role": "user", "content": f"Passage: {passage}"})
    return messages


def _shown(kind: str | None) -> tuple[str, Sequence[tuple[str, str]]]:
    """Return the instruction and the examples that a model is shown."""
    if kind is None:
        return INSTRUCTION, EXAMPLES
    row = QUERY_KINDS[kind]
    passages = [passage for passage, _ in EXAMPLES]
    return f"{row.instruction} {_FORM}", list(zip(passages, row.examples, strict=True))
