"""Kills of the page: whatever it was doing, no answered judgement is lost, and it opens again."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from functools import cache

from beir_cocodr.temporary import remove_dead_folders
from faults.inputs import TRACEBACK, Campaign, Outcome, find_leftovers
from faults.page_server import SERVE, TRY, PageServer
from faults.runner import TEMPORARY

#: Where the page is killed: while it starts, while someone judges, and while a report is written.
_PHASES = ["start", "start", "judge", "judge", "judge", "undo", "report"]


@cache
def _server(campaign: Campaign) -> PageServer:
    work = campaign.work.parent / "session"
    return PageServer(campaign.warm, campaign.folder, work)


def run_session(case: str, campaign: Campaign) -> Outcome:
    """Kill a session in some phase, once or twice, and open it again."""
    rng = campaign.generator(case)
    server = _server(campaign)
    began = time.perf_counter()
    server.lay_out()
    server.line = rng.choice([SERVE, TRY])
    judged: dict[str, int] = {}
    phases = [rng.choice(_PHASES) for _ in range(rng.choice([1, 2]))]
    for phase in phases:
        _kill_in(phase, server, judged, rng)
    outcome, message = _open_again(server, judged)
    server.stop()
    seconds = round(time.perf_counter() - began, 3)
    what = f"killed in {' and '.join(phases)}"
    command = server.line.split()[0]
    return Outcome(case, command, "session", "a kill", what, outcome, message, seconds, [])


def _kill_in(
    phase: str,
    server: PageServer,
    judged: dict[str, int],
    rng: random.Random,
) -> None:
    """Start the page, and kill it; what it has answered by then is added to ``judged``."""
    if phase == "start":
        server.fork()
        time.sleep(rng.random() * 2)
        server.kill()
        return
    server.open()
    for _ in range(rng.randrange(1, 6)):
        query = f"query {rng.randrange(10**6)}"
        grade = rng.randrange(3)
        if server.judge("d1", grade, query).status == 200:
            judged[query] = grade
    # The last request is sent, and nobody waits for its answer.
    bodies = {
        "judge": ("/api/judge", {"document": "d1", "grade": 1, "query": "the last"}),
        "undo": ("/api/undo", {"version": -1}),
        "report": ("/api/report", {}),
    }
    path, content = bodies[phase]
    body = json.dumps(content).encode()
    connection = server.connect()
    head = server.head("POST", path, {"content-length": str(len(body))})
    connection.sendall(head + body)
    time.sleep(rng.choice([0, 0.001, 0.01, 0.5]))
    server.kill()
    with suppress(OSError):
        connection.close()


def _open_again(server: PageServer, judged: dict[str, int]) -> tuple[str, str]:
    """Open the session, and judge whether everything is there."""
    try:
        server.open()
    except SystemExit as error:
        return "lost work", f"the session does not open: {error}"[-300:]
    if TRACEBACK in server.errors:
        return "traceback", server.errors.strip()[-300:]
    for query, grade in judged.items():
        state = json.loads(server.get(f"/api/state?query={query.replace(' ', '%20')}").body)
        if state["grades"].get("d1") != grade:
            return "lost work", f"{query!r} had grade {grade}, and has {state['grades']}"
    if server.judge("d2", 1, "after the kill").status != 200:
        return "lost work", "nothing can be judged any more"
    place = server.work / TEMPORARY
    before = find_leftovers(place)
    remove_dead_folders(place)
    dead = sorted({*before} - {*find_leftovers(place)})  # the new session has removed them
    left = find_leftovers(server.work / "judged") + dead
    if left:
        return "lost work", f"left behind: {', '.join(left)[:200]}"
    return "harmless", ""
