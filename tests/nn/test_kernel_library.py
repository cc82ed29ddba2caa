"""A library that is not to the byte what was built never runs: PyTorch decodes, and the product says why."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from model_samples import SMALL, WIDE, sample_batch, sample_network

import build_kernels
from mqcast.nn import kernels, library

pytestmark = pytest.mark.skipif(kernels.status() != "compiled", reason=kernels.status())
COMPILER = next(filter(shutil.which, ("cc", "gcc", "clang")), "cc")
SOURCE = (library.FOLDER / library.SOURCE).read_text()
DIGEST = hashlib.sha256(SOURCE.encode()).hexdigest()
RUNS = "int kernels_run_here(void) { return 1; }\n"
SAYS = f'const char *kernels_digest(void) {{ return "{DIGEST}"; }}\n' + RUNS
ASK = """
import sys
from pathlib import Path
from mqcast.nn import kernels, library
for folder in sys.argv[1:]:
    library.FOLDER = Path(folder)
    kernels._kernels.cache_clear()
    print(Path(folder).name, kernels.status(), sep="=", flush=True)
"""


def replaced(change: Callable[[bytes], bytes], name: str = library.LIBRARY) -> Callable[[Path], object]:
    """The damage: other bytes in a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def instead(make: Callable[[Path], object], name: str = library.LIBRARY) -> Callable[[Path], object]:
    """The damage: something else where the file was."""
    return lambda folder: ((folder / name).unlink(), make(folder / name))


def moved_out(path: Path) -> None:
    outside = path.parent.parent / f"{path.parent.name} outside"
    shutil.copy(library.FOLDER / path.name, outside)
    path.symlink_to(outside)


def vouched(content: bytes, folder: Path) -> None:
    """A library that the manifest names, as if it had been built so."""
    (folder / library.LIBRARY).write_bytes(content)
    facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / library.MANIFEST).write_text(json.dumps(facts))


def built(source: str) -> Callable[[Path], None]:
    """A library of another source, vouched for."""

    def build(folder: Path) -> None:
        path = folder / "other.c"
        path.write_text(source)
        flags = ["-O0", "-std=gnu11", "-fPIC", "-shared", "-w", f'-DDIGEST="{DIGEST}"', *of_machine()]
        subprocess.run([COMPILER, *flags, str(path), "-o", str(folder / "other.so"), "-lm"], check=True)
        vouched((folder / "other.so").read_bytes(), folder)

    return build


def of_machine() -> tuple[str, ...]:
    return build_kernels.MACHINE_FLAGS.get(os.uname().machine, ())


def of_another_machine(folder: Path) -> None:
    content = bytearray((folder / library.LIBRARY).read_bytes())
    content[18:20] = (8).to_bytes(2, "little")  # MIPS, in the header of an ELF file
    vouched(bytes(content), folder)


A_PLACE_ELSEWHERE = SOURCE.replace("A_SIZE(of, name) num name;", "A_SIZE(of, name) num name, not_told_##name;")
DAMAGED, MANIFEST_DAMAGED = (
    "libkernels.so is damaged",
    "libkernels.json, which holds the checksum of the kernels, is damaged",
)
NOT_A_FILE = "is not a regular file of a plausible size"
OTHER_VERSION = "the kernels belong to another version"
NO_LAYOUT = "do not fit this version of mqcast: it does not describe its arguments"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut in half": (replaced(lambda x: x[: len(x) // 2]), DAMAGED),
    "a page short": (replaced(lambda x: x[:-4096]), DAMAGED),
    "one bit flipped": (replaced(lambda x: x[:5000] + bytes([x[5000] ^ 1]) + x[5001:]), DAMAGED),
    "one byte more": (replaced(lambda x: x + b"\0"), DAMAGED),
    "empty": (replaced(lambda x: b""), DAMAGED),
    "gone": (instead(lambda path: None), "libkernels.so cannot be read (No such file or directory)"),
    "a pipe": (instead(os.mkfifo), f"libkernels.so {NOT_A_FILE}"),
    "a folder": (instead(Path.mkdir), f"libkernels.so {NOT_A_FILE}"),
    "a link out of the package": (instead(moved_out), "libkernels.so is a link to outside the package"),
    "a link to itself": (instead(lambda path: path.symlink_to(path)), "libkernels.so cannot be read"),
    "too large": (
        lambda folder: os.truncate(folder / library.LIBRARY, 2**40),
        "is not a regular file of a plausible size",
    ),
    "manifest gone": (instead(lambda path: None, library.MANIFEST), "installed without compiled kernels"),
    "manifest empty": (replaced(lambda x: b"", library.MANIFEST), MANIFEST_DAMAGED),
    "manifest a list": (replaced(lambda x: b"[]", library.MANIFEST), MANIFEST_DAMAGED),
    "manifest a number": (replaced(lambda x: b"7", library.MANIFEST), MANIFEST_DAMAGED),
    "manifest half": (replaced(lambda x: x[: len(x) // 2], library.MANIFEST), MANIFEST_DAMAGED),
    "manifest deep": (replaced(lambda x: b"[" * 100_000, library.MANIFEST), MANIFEST_DAMAGED),
    "manifest not text": (replaced(lambda x: b"\xff\xfe\xfd", library.MANIFEST), MANIFEST_DAMAGED),
    "manifest a pipe": (
        instead(os.mkfifo, library.MANIFEST),
        f"libkernels.json {NOT_A_FILE}",
    ),
    "manifest vouches for nothing": (replaced(lambda x: b'{"size": null, "sha256": 3}', library.MANIFEST), DAMAGED),
    "source gone": (instead(lambda path: None, library.SOURCE), "kernels.c cannot be read"),
    "source changed": (replaced(lambda x: x + b"\n", library.SOURCE), OTHER_VERSION),
    "no library at all": (lambda folder: vouched(b"not a library", folder), "the system cannot load libkernels.so"),
    "of another machine": (of_another_machine, "the system cannot load libkernels.so"),
    "without a digest": (built(RUNS), "libkernels.so does not describe itself"),
    "no digest": (built(f"const char *kernels_digest(void) {{ return 0; }}\n{RUNS}"), OTHER_VERSION),
    "another digest": (
        built(f'const char *kernels_digest(void) {{ return "0"; }}\n{RUNS}'),
        OTHER_VERSION,
    ),
    "without a layout": (built(SAYS), NO_LAYOUT),
    "no layout": (
        built(f"{SAYS}void *kernels_layout(void) {{ return 0; }}\nlong kernels_layout_length(void) {{ return 9; }}"),
        NO_LAYOUT,
    ),
    "another layout": (built(A_PLACE_ELSEWHERE), "are not where Python expects them"),
    "another type": (built(SOURCE.replace("const num, dilations", "const int, dilations")), "the type int is unknown"),
    "another shape": (built(SOURCE.replace('"layers"', '"floors"')), "have unknown shapes"),
    "another step": (built(SOURCE.replace('{"Align", ""', '{"Aligned", ""')), "it has unknown steps"),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> dict[str, str]:
    """What is said of each damage, by one process of its own: it ends with the first that brings a process down."""
    root = tmp_path_factory.mktemp("libraries")
    for name, (damage, _) in DAMAGES.items():
        folder = root / name
        folder.mkdir()
        for file in (library.SOURCE, library.LIBRARY, library.MANIFEST):
            shutil.copy(library.FOLDER / file, folder)
        damage(folder)
    command = [sys.executable, "-c", ASK, *(str(root / name) for name in DAMAGES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, (done.returncode, list(found)[-1:], done.stderr[-2000:])
    return found


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_library_is_not_taken_and_the_reason_is_said(name, said):
    assert said[name].startswith("plain PyTorch: ")
    assert DAMAGES[name][1] in said[name]
    assert "/" not in said[name]  # no names of folders


@pytest.fixture
def another_folder(tmp_path, monkeypatch):
    """The package's library elsewhere, looked for there, and where it was after the test."""
    for file in (library.SOURCE, library.LIBRARY, library.MANIFEST):
        shutil.copy(library.FOLDER / file, tmp_path)
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    kernels._kernels.cache_clear()
    yield tmp_path
    kernels._kernels.cache_clear()


def test_a_library_that_is_cut_short_while_in_use_goes_on_working(another_folder):
    network = sample_network(SMALL.replace(**WIDE))
    before = network(sample_batch(2))
    assert kernels.status() == "compiled"
    os.truncate(another_folder / library.LIBRARY, 0)
    assert torch.equal(network(sample_batch(2)), before)


def test_where_there_are_no_files_in_memory_a_copy_is_loaded_and_removed(another_folder, monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert kernels.status() == "compiled"
    assert not list(scratch.iterdir())


def test_forecasts_go_on_by_pytorch_where_the_library_is_damaged(another_folder):
    expected = sample_network(SMALL.replace(**WIDE))(sample_batch(2))
    os.truncate(another_folder / library.LIBRARY, 9000)
    kernels._kernels.cache_clear()
    assert torch.allclose(sample_network(SMALL.replace(**WIDE))(sample_batch(2)), expected, atol=1e-4)
    assert sample_network(SMALL.replace(**WIDE)).why_not_compiled() == kernels.status()
    assert sample_network(SMALL.replace(model="mqcnn")).why_not_compiled() is None


def test_a_compiler_that_fails_is_named_with_its_error(another_folder, tmp_path):
    (tmp_path / "kernels.c").write_text("#error this compiler is too old\n")
    why = build_kernels.build(tmp_path / "kernels.c", tmp_path)
    assert why is not None
    assert "could not compile them: #error this compiler is too old" in why
    assert why.count("could not") == 1  # cc and gcc are one
    assert kernels.status() == f"plain PyTorch: mqcast was installed without compiled kernels: {why}"


def test_that_there_is_no_compiler_is_said(another_folder, tmp_path):
    why = build_kernels.build(tmp_path / "kernels.c", tmp_path, compilers=("no-such-compiler",))
    assert why == "no C compiler was found; install GCC 11 or newer, or Clang"
    assert kernels.status() == f"plain PyTorch: mqcast was installed without compiled kernels: {why}"
