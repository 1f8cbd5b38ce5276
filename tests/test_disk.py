"""Files appear whole, in the place that was named, and what is no file is not replaced by one."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relbo._disk import refuse_unwritable, write_text
from relbo.train.directory import refuse_foreign


def device(path, minor):
    """A character device of memory's: 3 is the null device, 7 is always full."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        path.open("wb").close()
    except (AttributeError, PermissionError):
        pytest.skip("making a device takes root, and a file system that has devices")
    return path


def test_a_device_is_written_through(tmp_path):
    null, full = device(tmp_path / "null", 3), device(tmp_path / "full", 7)
    for path in (null, full):
        refuse_unwritable(path)
    write_text(null, "text")
    with pytest.raises(OSError, match="full cannot be written: No space left on device"):
        write_text(full, "text")
    assert null.is_char_device() and full.is_char_device() and len(list(tmp_path.iterdir())) == 2


def test_a_pipe_is_written_through(tmp_path):
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    refuse_unwritable(pipe)
    write_text(pipe, "text")
    reader.join(10)
    assert heard == ["text"] and pipe.is_fifo() and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("target", ["there", "not yet", "folder/not yet"])
def test_a_link_stays_and_leads_to_the_file(tmp_path, target):
    (tmp_path / "there").write_text("old")
    link = tmp_path / "link"
    link.symlink_to(target)
    refuse_unwritable(link)
    write_text(link, "text")
    assert os.readlink(link) == target and (tmp_path / target).read_text() == "text" and not link.stat().st_mode & 0o111


def test_a_folder_is_refused_and_folders_are_made(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder must be the name of a file, got a folder"):
        refuse_unwritable(tmp_path / "folder")
    write_text(tmp_path / "a" / "b" / ("é" * 120), "text")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["é" * 120]


@pytest.mark.parametrize("refuse", [refuse_unwritable, lambda path: refuse_foreign(path, resume=False)])
def test_where_nothing_can_be_made_is_known_beforehand(tmp_path, refuse):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file" / "x", tmp_path / "file" / "x" / "y"):
        with pytest.raises(OSError, match="file is a file, not a folder"):
            refuse(path)
    refuse(tmp_path / "new" / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    if Path("/proc").is_mount():
        with pytest.raises(OSError, match="/proc/x.* cannot be written: "):
            refuse(Path("/proc/x"))


def test_a_disk_that_cannot_even_be_cleaned_is_said_by_the_name_of_the_file(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    for name in ("open", "unlink"):
        monkeypatch.setattr(Path, name, fail)
    with pytest.raises(OSError, match="a.json cannot be written: Read-only file system"):
        write_text(tmp_path / "a.json", "text")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_is_written_to_and_what_stands_in_its_file_stays(tmp_path, name):
    log = tmp_path / "log"
    log.write_text("earlier\n")
    code = (
        "from pathlib import Path; from relbo._disk import refuse_unwritable, write_text; print('table');"
        f"out = Path({name!r}); refuse_unwritable(out); write_text(out, 'json\\n'); print('end')"
    )
    for mode in ("a", "w"):
        with log.open(mode) as stream:
            subprocess.run([sys.executable, "-c", code], check=True, stdout=stream)
        assert log.read_text() == ("earlier\n" if mode == "a" else "") + "table\njson\nend\n"


def test_what_others_may_not_read_stays_so(tmp_path):
    file = tmp_path / "a.json"
    file.write_text("old")
    file.chmod(0o600)
    write_text(file, "new")
    assert file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o600
