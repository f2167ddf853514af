"""Freed memory stays with the process."""

import subprocess
import sys

import pytest

from tokenmix import memory
from tokenmix.memory import keep_freed_memory

FAULTS = """
import resource, runpy, sys
keep_freed_memory = runpy.run_path(sys.argv[1])["keep_freed_memory"]
assert "keep" not in sys.argv or keep_freed_memory()

def step():
    blocks = [b"x" * (8 << 20) for _ in range(8)]

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not keep_freed_memory(), reason="needs glibc")
def test_a_step_finds_the_memory_of_the_one_before():
    given_back, kept = (
        int(
            subprocess.run([sys.executable, "-c", FAULTS, memory.__file__, way], check=True, capture_output=True).stdout
        )
        for way in ("back", "keep")
    )
    assert kept < given_back / 10, (kept, given_back)


def test_another_libc_is_left_alone(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    assert keep_freed_memory() is False
