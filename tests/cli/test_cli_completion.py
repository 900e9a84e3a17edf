"""Commands, options and names of models are completed in real shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = "_BEIR_COCODR_COMPLETE=source_{} beir-cocodr"

#: How each shell starts without a person's own settings.
SHELLS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config"),
}

#: The lines that switch completion on, as docs/install.md has them.
SWITCH_ON = {
    "bash": f'eval "$({SCRIPT.format("bash")})"',
    "zsh": f'autoload -U compinit; compinit -u; eval "$({SCRIPT.format("zsh")})"',
    "fish": f"{SCRIPT.format('fish')} | source",
}


def environment(home: Path) -> dict[str, str]:
    programs = Path(sys.executable).parent
    kept = {name: os.environ[name] for name in os.environ if not name.startswith("_")}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "HOME": str(home), "TERM": "dumb", "PS1": "$ "}


def shell(name: str) -> tuple[str, ...]:
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")
    return (program, *SHELLS[name][1:])


def typed(words: tuple[str, ...], home: Path, *steps: tuple[bytes, bytes]) -> bytes:
    """Type into a shell on a terminal: each text, until an answer to it is on the screen."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(home)
        os.execve(words[0], words, environment(home))
    screen = b""
    try:
        for text, answer in steps:
            os.write(terminal, text)
            start = len(screen)
            deadline = time.monotonic() + 120
            while answer not in screen[start:] and time.monotonic() < deadline:
                if select.select([terminal], [], [], 1)[0]:
                    screen += os.read(terminal, 65_536)
        return screen
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
        os.close(terminal)


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_the_tab_key_completes_a_command_and_an_option(name, tmp_path):
    switch_on = f"{SWITCH_ON[name]}; echo rea''dy\n".encode()
    screen = typed(
        shell(name),
        tmp_path,
        (switch_on, b"ready"),
        (b"beir-cocodr evalu\t", b"ate"),
        (b" --judgem\t", b"ents"),
    )
    assert b"ate" in screen.rpartition(b"beir-cocodr evalu")[2], screen
    assert b"ents" in screen.rpartition(b"--judgem")[2], screen


def test_fish_completes_commands_options_and_models(tmp_path):
    lines = ["beir-cocodr evalu", "beir-cocodr evaluate --judgem", "beir-cocodr encode mini"]
    asked = "; ".join(f"complete -C '{line}'" for line in lines)
    completed = subprocess.run(
        [*shell("fish"), "-c", f"{SWITCH_ON['fish']}; {asked}"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split("\t")[0] for line in completed.stdout.splitlines()] == [
        "evaluate",
        "--judgements",
        "minilm",
    ]


@pytest.mark.parametrize("name", SHELLS)
def test_the_guide_has_the_line_that_was_tried(name):
    guide = Path(__file__).parents[2] / "docs" / "install.md"
    assert f"{SWITCH_ON[name].rpartition('; ')[2]}\n" in guide.read_text()
