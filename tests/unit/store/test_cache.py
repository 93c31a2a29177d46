"""The shared cache: one fill, whole entries, nothing in use removed."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fcntl import LOCK_SH, LOCK_UN, flock
from pathlib import Path

import pytest

from rolloutpipe_core.errors import Damaged, DeadlineExceeded, ObjectMissing
from rolloutpipe_core.store.cache import DirectoryCache


def content(text: str):
    def fill(directory: Path) -> None:
        (directory / "file").write_text(text)

    return fill


def never(directory: Path) -> None:
    raise AssertionError("filled again")


def entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


def locks(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.lock"))


def aged(directory: Path, name: str, seconds: int) -> None:
    os.utime(directory / name, (seconds, seconds))


def test_an_entry_is_filled_once(tmp_path):
    with DirectoryCache(tmp_path) as cache:
        assert (cache.fetch("v1", content("one")) / "file").read_text() == "one"
        assert (cache.fetch("v1", never) / "file").read_text() == "one"
    with DirectoryCache(tmp_path) as another:
        assert (another.fetch("v1", never) / "file").read_text() == "one"


def test_a_failed_fill_leaves_nothing(tmp_path):
    def fail(directory: Path) -> None:
        (directory / "half").write_text("")
        raise Damaged("wrong hash")

    with DirectoryCache(tmp_path) as cache:
        with pytest.raises(Damaged):
            cache.fetch("v1", fail)
        assert entries(tmp_path) == []
        assert (cache.fetch("v1", content("one")) / "file").read_text() == "one"


def test_what_a_killed_fill_left_is_removed(tmp_path):
    (tmp_path / "v1.part").mkdir()
    (tmp_path / "v1.part" / "old").write_text("")
    with DirectoryCache(tmp_path) as cache:
        entry = cache.fetch("v1", content("one"))
    assert [path.name for path in entry.iterdir()] == ["file"]
    assert entries(tmp_path) == ["v1"]


def test_the_newest_are_kept(tmp_path):
    with DirectoryCache(tmp_path, keep=2) as cache:
        for age, name in enumerate(["v1", "v2", "v3"]):
            cache.fetch(name, content(name))
            aged(tmp_path, name, age)
        cache.fetch("v4", content("v4"))
    assert entries(tmp_path) == locks(tmp_path) == ["v3", "v4"]


def test_an_entry_in_use_is_never_removed(tmp_path):
    with DirectoryCache(tmp_path) as reader:
        reader.fetch("v1", content("v1"))
        aged(tmp_path, "v1", 0)
        with DirectoryCache(tmp_path, keep=1) as cache:
            cache.fetch("v2", content("v2"))
            assert entries(tmp_path) == ["v1", "v2"]
            reader.close()
            cache.fetch("v3", content("v3"))
            assert entries(tmp_path) == ["v3"]


def test_one_process_fills_and_the_others_take_it(tmp_path):
    """Four processes ask at once; each fill appends a line to a file outside."""
    script = """
import sys, time
from pathlib import Path
from rolloutpipe_core.store.cache import DirectoryCache
root = Path(sys.argv[1])
def fill(directory):
    with (root / "fills").open("a") as file:
        file.write("filled\\n")
    time.sleep(0.2)
    (directory / "file").write_text("one")
with DirectoryCache(root / "cache") as cache:
    print((cache.fetch("v1", fill) / "file").read_text())
"""
    workers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [worker.communicate(timeout=60)[0] for worker in workers] == ["one\n"] * 4
    assert (tmp_path / "fills").read_text() == "filled\n"


def test_nobody_waits_for_the_use_of_an_entry_to_end(tmp_path):
    """Who came when there was no entry takes the one that another has filled meanwhile and keeps in use."""
    seen = tmp_path / "v1.lock"
    caches = [DirectoryCache(tmp_path, deadline_s=5) for _ in range(4)]
    with seen.open("ab") as looking, ThreadPoolExecutor(len(caches)) as pool:
        flock(looking, LOCK_SH)  # all of them see that there is no entry, and wait to fill it
        fetched = [pool.submit(cache.fetch, "v1", content("one")) for cache in caches]
        time.sleep(0.3)
        flock(looking, LOCK_UN)
        for each in fetched:
            assert each.result() == tmp_path / "v1"
    for cache in caches:
        cache.close()


def test_a_wait_for_another_has_a_deadline(tmp_path):
    waiter = DirectoryCache(tmp_path, deadline_s=0.2)

    def fill(directory: Path) -> None:
        with pytest.raises(DeadlineExceeded, match="another process holds an entry of the cache"):
            waiter.fetch("v1", never)

    with DirectoryCache(tmp_path) as cache:
        cache.fetch("v1", fill)


def test_a_cache_deleted_underneath_is_filled_again(tmp_path):
    with DirectoryCache(tmp_path) as cache:
        entry = cache.fetch("v1", content("one"))
        (entry / "file").unlink()
        entry.rmdir()
        assert (cache.fetch("v1", content("two")) / "file").read_text() == "two"


def test_what_a_killed_download_left_goes_with_the_next_fetch(tmp_path):
    (tmp_path / "v1.part").mkdir()
    (tmp_path / "v1.part" / "half").write_text("half")
    (tmp_path / "v1.lock").touch()

    def fill(directory: Path) -> None:
        with DirectoryCache(tmp_path) as other:
            other.fetch("v3", content("three"))  # leaves a download that is under way alone
        content("two")(directory)

    with DirectoryCache(tmp_path) as cache:
        assert (cache.fetch("v2", fill) / "file").read_text() == "two"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v2", "v2.lock", "v3", "v3.lock"]


def test_the_locks_of_failed_fills_go_with_the_next_fetch(tmp_path):
    """Weights that were deleted before a slow worker came for them, version after version."""

    def missing(_: Path) -> None:
        raise ObjectMissing("no such object")

    with DirectoryCache(tmp_path) as cache:
        for name in ("a", "b", "c"):
            with pytest.raises(ObjectMissing):
                cache.fetch(name, missing)
        cache.fetch("d", content("d"))
    assert locks(tmp_path) == ["d"] and entries(tmp_path) == ["d"]
