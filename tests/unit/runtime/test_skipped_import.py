"""What a service does not wait for at its start: optional packages of libraries, validators of unused messages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from services._runtime.skipped_import import bare_packages, not_imported

SERVICE = """
import sys, services.allocator.__main__
print(sorted({"aiohttp", "rich"} & sys.modules.keys()))
import aiohttp, rich
"""
VERTEX = """
import sys, services.collector.cloud.vertex
print([name for name in sys.modules if name.startswith("google.cloud.aiplatform_v1.services.")
       and not name.startswith("google.cloud.aiplatform_v1.services.job_service")])
from google.cloud.aiplatform_v1 import CustomJob, DatasetServiceClient
assert CustomJob is services.collector.cloud.vertex.CustomJob
"""
MESSAGES = """
import services.allocator.__main__
from schemas.codec import MESSAGE_TYPES
from services._runtime.service.app import compile_messages
def compiled(): return {model.__name__ for model in MESSAGE_TYPES.values() if model.__pydantic_complete__}
print(sorted(compiled()))
compile_messages("allocator")
print({"CfsBatch", "LimitUpdate", "MemoryRequest", "MemoryReply"} <= compiled(), "JobSpec" in compiled())
"""


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_service_imports_neither_websockets_nor_coloured_tracebacks() -> None:
    """Both are installed here, and can be imported afterwards."""
    assert printed(SERVICE) == "[]\n"


def test_of_google_s_clients_one_is_imported_and_all_are_there_for_others() -> None:
    assert printed(VERTEX) == "[]\n"


def test_a_package_that_is_not_installed_is_told() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"google\.nothing") as caught, bare_packages("google.nothing"):
        pass
    assert caught.value.name == "google.nothing"


def test_a_service_compiles_what_it_sends_and_receives_and_the_rest_when_it_is_first_used() -> None:
    """It uses few of some hundred."""
    assert printed(MESSAGES) == "[]\nTrue False\n"


def test_a_package_seems_not_to_be_installed_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with not_imported("this"), pytest.raises(ModuleNotFoundError, match="this"):
        __import__("this")
    assert "this" not in sys.modules


def test_what_was_imported_before_is_there_again() -> None:
    with not_imported("pytest"), pytest.raises(ModuleNotFoundError, match="pytest"):
        __import__("pytest")
    assert __import__("pytest") is pytest
