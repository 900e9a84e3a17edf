"""The search and the verdict of a session as tools of an agent, by the Model Context Protocol."""

from collections.abc import Mapping
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from beir_cocodr import __version__
from beir_cocodr.errors import InputError
from beir_cocodr.records import Json
from beir_cocodr.serve.session import AnswerColumn, Session

# The documents that a search returns at most, as on the page.
_MOST = 10


class SessionTools:
    """The tools: each is a method that takes and returns what JSON holds.

    Args:
        session: A session that was started.
    """

    def __init__(self, session: Session) -> None:
        """Take the session."""
        self.session = session

    def search(self, query: str, model: str = "", top_k: int = 5) -> Json:
        """Search the documents for a text, and return the best ones with snippets.

        Args:
            query: The text to search for.
            model: The name of a model, as list_models gives it. By default the best one that is
                ready.
            top_k: The number of documents, from 1 to 10.
        """
        if not 1 <= top_k <= _MOST:
            raise ToolError(f"top_k is {top_k}; give a number from 1 to {_MOST}")
        name = model or self._default_model()
        try:
            answer = self.session.search(name, query)
        except InputError as error:
            raise ToolError(str(error)) from error
        hits: Any = answer["hits"]
        if hits is None:
            raise ToolError(f"{name} is not ready ({_progress(self.session.columns[name])})")
        return {"model": name, "documents": [_plain_hit(hit) for hit in hits[:top_k]]}

    def _default_model(self) -> str:
        """Return the best model that is ready, by the verdict if there is one, else the last."""
        ready = [name for name, column in self.session.columns.items() if column.searcher]
        if not ready:
            raise ToolError("no model is ready; ask list_models for their progress")
        verdict = self.session.verdict
        if verdict is not None and verdict.best in ready:
            return verdict.best
        return ready[-1]

    def read_document(self, id: str) -> Json:
        """Return the title and the whole text of a document.

        Args:
            id: The id of a document, as search gives it.
        """
        try:
            document = self.session.document(id)
        except InputError as error:
            raise ToolError(str(error)) from error
        parts = (document["before"], document["text"], document["after"])
        return {
            "id": id,
            "title": document["title"],
            "text": "".join(_text(part) for part in parts),
        }

    def list_models(self) -> Json:
        """List the models that search, and say which are ready."""
        columns = self.session.columns.values()
        return {"models": [_described(column) for column in columns]}

    def verdict(self) -> Json:
        """Say which model searches these documents best, and how far to trust that.

        The verdict is an estimate from the documents alone, and from judgements if a person has
        made some.
        """
        verdict = self.session.verdict
        if verdict is None:
            reason = self.session.remark or "the models are still being compared; ask again later"
            return {"verdict": None, "reason": reason}
        pairs = []
        for pair in verdict.pairs:
            low, high = pair.interval
            pairs.append(
                {
                    "a": pair.a,
                    "b": pair.b,
                    "verdict_of_b_against_a": pair.verdict,
                    "gain_of_ndcg10": pair.estimate,
                    "interval": [low, high],
                    "reason": pair.reason,
                }
            )
        return {
            "verdict": verdict.headline,
            "best": verdict.best,
            "may_be_as_good": verdict.open,
            "judged_queries": verdict.queries,
            "pairs": pairs,
            "trust": verdict.trust,
        }


def _progress(column: AnswerColumn) -> str:
    """Return how far the loading of a model is."""
    if column.state == "encoding":
        return f"encoding, {column.done} documents done"
    return column.remark or column.state


def _described(column: AnswerColumn) -> Json:
    return {
        "name": column.name,
        "compares": column.about,
        "ready": column.searcher is not None,
        "state": _progress(column),
    }


def _text(parts: Any) -> str:
    """Return a text without the marks of its parts."""
    return "".join(text for text, _ in parts)


def _plain_hit(hit: Mapping[str, Any]) -> Json:
    """Return a hit of the page as plain text."""
    return {
        "id": hit["id"],
        "title": hit["title"],
        "place": hit["place"],
        "score": hit["score"],
        "snippet": _text(hit["snippet"]),
    }


def serve_tools(session: Session) -> None:
    """Serve the tools over standard input and output until the input ends."""
    server = MCPServer(
        "beir-cocodr",
        version=__version__,
        instructions=f"Search {session.dataset}, and learn which model searches it best.",
        log_level="WARNING",
    )
    tools = SessionTools(session)
    for tool in (tools.search, tools.read_document, tools.list_models, tools.verdict):
        server.add_tool(tool)
    server.run("stdio")
