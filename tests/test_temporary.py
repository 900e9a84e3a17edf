"""Temporary folders go with their process, also if it is killed, and only then."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import exit_code, process
from faults.ordinary import become_ordinary

from beir_cocodr import Searcher
from beir_cocodr.io import sole_writer
from beir_cocodr.serve.session import Session
from beir_cocodr.temporary import PREFIX, TemporaryFolder


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """The system's folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def _die_with_a_folder(place: Path, parent: Path | None = None) -> None:
    tempfile.tempdir = str(place)
    folder = TemporaryFolder(parent)
    (folder.path / "deep").mkdir()
    (folder.path / "deep" / "store.npy").write_bytes(b"vectors")
    os.kill(os.getpid(), signal.SIGKILL)


def _die_searching(place: Path, dataset: Path) -> None:
    tempfile.tempdir = str(place)
    searcher = Searcher(str(dataset))
    searcher.prepare()
    os.kill(os.getpid(), signal.SIGKILL)


def _die_serving(place: Path, dataset: Path) -> None:
    tempfile.tempdir = str(place)
    session = Session(str(dataset), ["bm25"], place / "judged")
    session.start()
    os.kill(os.getpid(), signal.SIGKILL)


def _leave_to_a_child(place: Path) -> None:
    """Die, and leave a child that was forked."""
    tempfile.tempdir = str(place)
    folder = TemporaryFolder()
    if os.fork() == 0:
        (place / "child").write_text(str(os.getpid()))
        time.sleep(300)
    while not (place / "child").exists():
        time.sleep(0.01)
    assert folder.path.is_dir()
    os.kill(os.getpid(), signal.SIGKILL)


def _race(place: Path, ready: Path) -> None:
    """Make folders while others do, and check that they stay."""
    tempfile.tempdir = str(place)
    ready.touch()
    while len(list(ready.parent.iterdir())) < 4:
        time.sleep(0.001)
    for number in range(50):
        with TemporaryFolder() as folder:
            (folder / "file").write_text(str(number))
            TemporaryFolder().remove()
            assert (folder / "file").read_text() == str(number)


def test_the_folder_of_a_killed_process_is_removed_by_the_next(place):
    assert exit_code(_die_with_a_folder, place) == -signal.SIGKILL
    [left] = names(place)
    assert left.startswith(PREFIX)
    with TemporaryFolder() as folder:
        assert names(place) == [folder.parent.name]
        assert names(folder) == []
    assert names(place) == []


def test_a_killed_searcher_leaves_nothing_to_stay(place, beir_folder):
    assert exit_code(_die_searching, place, beir_folder) == -signal.SIGKILL
    assert len(names(place)) == 1
    Searcher(str(beir_folder)).search("wing")
    assert len(names(place)) <= 1  # its own


def test_a_killed_session_leaves_only_what_was_judged(place, beir_folder):
    assert exit_code(_die_serving, place, beir_folder) == -signal.SIGKILL
    assert len(names(place)) > 1
    TemporaryFolder().remove()
    assert names(place) == ["judged"]


def test_the_folder_of_a_living_process_stays(place):
    first = TemporaryFolder()
    with TemporaryFolder() as second:
        assert first.path.is_dir()
        assert second.is_dir()
        assert exit_code(_race, place, _three_more(place)) == 0
        assert first.path.is_dir()
        assert second.is_dir()


def _three_more(place: Path) -> Path:
    ready = place / "ready"
    ready.mkdir()
    for number in range(3):
        (ready / str(number)).touch()
    return ready / "last"


def test_a_forked_child_holds_the_folder_and_does_not_remove_it(place):
    folder = TemporaryFolder()
    child = os.fork()
    if child == 0:
        folder.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.path.is_dir()
    assert exit_code(_sweep, place) == 0  # the child's end did not let the lock go
    assert folder.path.is_dir()

    folder.remove()
    assert exit_code(_leave_to_a_child, place) == -signal.SIGKILL
    child = int((place / "child").read_text())
    [left] = place.glob(f"{PREFIX}*")
    TemporaryFolder().remove()
    assert left.is_dir()
    os.kill(child, signal.SIGKILL)
    for _ in range(500):
        TemporaryFolder().remove()
        if not left.exists():
            break
        time.sleep(0.01)
    assert not left.exists()


def _sweep(place: Path) -> None:
    tempfile.tempdir = str(place)
    TemporaryFolder().remove()


def test_starters_at_the_same_time_leave_each_others_folders(place, tmp_path_factory):
    for _ in range(4):
        assert exit_code(_die_with_a_folder, place) == -signal.SIGKILL
    ready = tmp_path_factory.mktemp("ready")
    starters = [process(_race, place, ready / str(number)) for number in range(4)]
    for starter in starters:
        starter.join(300)
    assert [starter.exitcode for starter in starters] == [0] * 4
    assert names(place) == []


def test_threads_leave_each_others_folders(place):
    def work(number: int) -> bool:
        with TemporaryFolder() as folder:
            time.sleep(0.001)
            return folder.is_dir()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))
    assert names(place) == []


def test_other_folders_of_the_same_prefix_stay(place):
    (place / f"{PREFIX}without-lock").mkdir()
    (place / f"{PREFIX}without-lock" / "thesis.txt").write_text("wing")
    (place / f"{PREFIX}file").write_text("a file")
    precious = place / "precious"
    precious.mkdir()
    (precious / "in-use").touch()
    (precious / "thesis.txt").write_text("wing")
    (place / f"{PREFIX}link").symlink_to(precious)
    linked = place / f"{PREFIX}linked-lock"
    linked.mkdir()
    (linked / "in-use").symlink_to(precious / "in-use")
    before = names(place)
    TemporaryFolder().remove()
    assert names(place) == before
    assert (precious / "thesis.txt").read_text() == "wing"


def test_in_an_output_only_folders_of_this_kind_are_removed(place):
    output = place / "output"
    output.mkdir()
    assert exit_code(_die_with_a_folder, place, output) == -signal.SIGKILL
    (output / ".unfinished-1").mkdir()  # a draft that another thread is about to write to
    with TemporaryFolder(output) as folder:
        assert names(output) == [".unfinished-1", folder.parent.name]
    with sole_writer(output):
        pass
    assert names(output) == []


def test_a_folder_whose_process_died_before_it_was_locked_is_removed(place):
    (place / f"{PREFIX}empty").mkdir()
    TemporaryFolder().remove()
    assert names(place) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_folders_of_other_users_stay(place):
    assert exit_code(_die_with_a_folder, place) == -signal.SIGKILL
    [left] = place.iterdir()
    os.chown(left, 12345, 12345)
    TemporaryFolder().remove()
    assert left.is_dir()


def test_a_folder_that_the_umask_closes_is_named_and_not_left(place):
    assert exit_code(_make_without_permissions, place) == 0
    assert names(place) == []


def _make_without_permissions(place: Path) -> None:
    become_ordinary()
    tempfile.tempdir = str(place)
    os.umask(0o777)
    with pytest.raises(PermissionError):
        TemporaryFolder()


def test_content_that_links_elsewhere_is_not_followed(place, tmp_path_factory):
    precious = tmp_path_factory.mktemp("precious")
    (precious / "thesis.txt").write_text("wing")
    with TemporaryFolder() as folder:
        (folder / "link").symlink_to(precious)
    assert names(place) == []
    assert (precious / "thesis.txt").read_text() == "wing"


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_has_its_own_folder(place, duplicate):
    folder = TemporaryFolder()
    other = duplicate(folder)
    del folder
    assert other.path.is_dir()
    del other
    assert names(place) == []
