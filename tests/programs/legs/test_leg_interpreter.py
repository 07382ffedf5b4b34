"""A forked interpreter gives a program the same surroundings as a fresh one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from determined_tasks import imported_modules
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService


def test_the_view_of_a_program(legs: LegRunner, service: FakeService, fork: bool) -> None:
    script = """
import gc, json, os, signal, sys, threading
import helper
print(json.dumps({
    "argv": sys.argv,
    "path0": sys.path[0] == os.getcwd(),
    "name": __name__,
    "file": __file__ == os.path.join(os.getcwd(), "train.py"),
    "main": sys.modules["__main__"].__dict__ is globals(),
    "helper": helper.VALUE,
    "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "sigchld": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
    "sigpipe": signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN,
    "threads": threading.active_count(),
    "main_thread": threading.current_thread() is threading.main_thread(),
    "gc": gc.isenabled(),
    "stdin": sys.stdin.read(),
    "tty": sys.stdout.isatty(),
    "encoding": sys.stdout.encoding,
    "leader": os.getpid() == os.getpgid(0) == os.getsid(0),
    "descriptors": sorted(int(f) for f in os.listdir("/dev/fd"))[:3],
    "more_descriptors": len(os.listdir("/dev/fd")),
    "executable": sys.executable,
    "handlers": len(__import__("logging").root.handlers),
    "secrets": [k for k in os.environ if k.startswith("PREFECT_API") or k == "DET_AGENT_TOKEN"],
    "unbuffered": os.environ["PYTHONUNBUFFERED"],
    "safe_path": sys.flags.safe_path,
    "doc": __doc__,
    "annotations": __annotations__,
    "spec": __spec__ is None,
}))
"""
    legs.run(
        {"train.py": script, "helper.py": "VALUE = 5"},
        fork=fork,
        entrypoint="python3 train.py --lr 0.1 'two words'",
    )
    seen = json.loads(service.text("stdout"))
    assert seen == {
        "argv": ["train.py", "--lr", "0.1", "two words"],
        "path0": True,
        "name": "__main__",
        "file": True,
        "main": True,
        "helper": 5,
        "sigterm": True,
        "sigint": True,
        "sigchld": True,
        "sigpipe": True,
        "threads": 1,
        "main_thread": True,
        "gc": True,
        "stdin": "",
        "tty": False,
        "encoding": "utf-8",
        "leader": True,
        "descriptors": [0, 1, 2],
        "more_descriptors": 4,  # and that of the listing
        "executable": seen["executable"],
        "handlers": 0,
        "secrets": [],
        "unbuffered": "1",
        "safe_path": False,
        "doc": None,
        "annotations": {},
        "spec": True,
    }
    (packages,) = legs.work_dir.glob("experiments/7.c/packages-????????????")
    assert Path(seen["executable"]) == packages / "bin/python3"


def test_task_environment(legs: LegRunner, service: FakeService, fork: bool) -> None:
    script = """
import json, os
from determined import get_cluster_info
info = get_cluster_info()
print(json.dumps({
    "trial": info.trial.trial_id,
    "hparams": info.trial.hparams,
    "seed": info.trial.trial_seed,
    "config": info.trial._config,
    "slots": info.slot_ids,
    "allocation": info.allocation_id,
    "token": info.session_token,
    "own": os.environ["OWN"],
    "empty": os.environ["EMPTY"],
    "cwd": os.getcwd() == os.environ["DET_WORKDIR"],
    "tmp": os.path.dirname(__import__("tempfile").mkdtemp()) == os.environ["TMPDIR"],
    "python": __import__("shutil").which("python3"),
}))
"""
    # A variable that is read at an interpreter's start decides between the two forms.
    variables = ["OWN=a=b", "EMPTY", *([] if fork else ["PYTHONHASHSEED=1"])]
    legs.run({"train.py": script}, environment_variables=variables)
    seen = json.loads(service.text("stdout"))
    python = Path(seen.pop("python"))
    (packages,) = legs.work_dir.glob("experiments/7.c/packages-????????????")
    assert python == packages / "bin/python3"
    assert seen == {
        "trial": 21,
        "hparams": {"lr": 0.1},
        "seed": 17,
        "config": {"name": "test"},
        "slots": [0],
        "allocation": "7.abc.1",
        "token": "v2.token",
        "own": "a=b",
        "empty": "",
        "cwd": True,
        "tmp": True,
    }


def test_info_files_say_the_same(legs: LegRunner, service: FakeService) -> None:
    script = """
import os
for name in ("DET_MASTER", "DET_TRIAL_ID"):
    del os.environ[name]
from determined import get_cluster_info
info = get_cluster_info()
print(info.trial.trial_id, info.trial.hparams, info.session_token, info.container_addrs)
"""
    legs.run({"train.py": script})
    assert service.text("stdout") == "21 {'lr': 0.1} v2.token ['127.0.0.1']\n"


def test_huge_configuration_is_left_to_the_info_files(
    legs: LegRunner, service: FakeService, fork: bool
) -> None:
    config = {"name": "test", "data": {"text": "x" * 200_000}}
    script = """
import os
print("DET_EXPERIMENT_CONFIG" in os.environ, os.environ["DET_TRIAL_ID"])
"""
    legs.run({"train.py": script}, fork=fork, config=config)
    assert service.text("stdout") == "False 21\n"


def test_module_entrypoint(legs: LegRunner, service: FakeService, fork: bool) -> None:
    files: dict[str, str | bytes] = {
        "pkg/__init__.py": "",
        "pkg/train.py": "import sys, os\nprint(__name__, __spec__.name, sys.argv[1:],"
        " sys.argv[0] == __file__, sys.path[0] == os.getcwd())",
        "pkg/__main__.py": "print('package')",
    }
    legs.run(files, fork=fork, entrypoint="python3 -m pkg.train a 'b c'")
    legs.run(files, fork=fork, entrypoint=["python3", "-m", "pkg"], allocation_id="7.abc.2")
    assert service.text("stdout") == "__main__ pkg.train ['a', 'b c'] True True\npackage\n"


def test_script_in_a_folder(legs: LegRunner, service: FakeService, fork: bool) -> None:
    files: dict[str, str | bytes] = {
        "src/train.py": "import helper, sys, os\nprint(helper.X, sys.path[0] == os.getcwd() + '/src')",
        "src/helper.py": "X = 1",
    }
    legs.run(files, fork=fork, entrypoint="python3 -u src/train.py")
    assert service.text("stdout") == "1 True\n"


def test_exit_hooks_threads_and_buffers(legs: LegRunner, service: FakeService, fork: bool) -> None:
    script = """
import atexit, sys, threading, time
atexit.register(lambda: print("hook"))
def work():
    time.sleep(0.2)
    print("thread")
threading.Thread(target=work).start()
sys.stdout.write("end of main\\n")
sys.exit(7)
"""
    ended = legs.run({"train.py": script}, fork=fork)
    assert ended["exit_code"] == 7
    assert service.text("stdout") == "end of main\nthread\nhook\n"


def test_exit_hooks_see_the_failure(legs: LegRunner, service: FakeService, fork: bool) -> None:
    script = """
import atexit, sys
atexit.register(lambda: print(sys.last_type is ValueError, repr(sys.last_value)))
raise ValueError("no data")
"""
    ended = legs.run({"train.py": script}, fork=fork)
    assert ended["exit_code"] == 1
    assert service.text("stdout") == "True ValueError('no data')\n"


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing(legs: LegRunner, service: FakeService, fork: bool, method: str) -> None:
    script = """
import multiprocessing, os, sys
class Square:
    def __call__(self, x):
        return x * x, os.path.basename(os.getcwd())
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2) as pool:
        print(pool.map(Square(), [1, 2, 3]))
"""
    ended = legs.run({"train.py": script}, fork=fork, entrypoint=f"python3 train.py {method}")
    assert ended["exit_code"] == 0
    expected = [(1, "workdir"), (4, "workdir"), (9, "workdir")]
    assert service.text("stdout") == f"{expected}\n"


def test_data_loader_workers(legs: LegRunner, service: FakeService, fork: bool) -> None:
    pytest.importorskip("torch")
    script = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(8.0))
total = sum(batch[0].sum().item() for batch in DataLoader(data, batch_size=2, num_workers=2))
weight = torch.nn.Parameter(torch.ones(300, 300))
(weight @ weight).sum().backward()
torch.optim.Adam([weight], lr=0.1).step()
print(total, weight.grad.shape[0])
"""
    legs.run({"train.py": script}, fork=fork)
    assert service.text("stdout") == "28.0 300\n"


def test_random_numbers_differ_between_legs(legs: LegRunner, service: FakeService) -> None:
    script = "import random, uuid\nprint(random.random(), uuid.uuid4())"
    for number in (1, 2):
        legs.run({"train.py": script}, allocation_id=f"7.abc.{number}")
    first, second = service.text("stdout").splitlines()
    assert first.split()[0] != second.split()[0]


def test_users_module_named_like_an_imported_one_wins(
    legs: LegRunner, service: FakeService
) -> None:
    files: dict[str, str | bytes] = {
        "train.py": "import psutil, sys\nprint(psutil.MINE, 'determined_tasks.leg' in sys.modules)",
        "psutil.py": "MINE = 1",
    }
    legs.run(files)
    assert service.text("stdout") == "1 False\n"


@pytest.mark.parametrize(
    ("entrypoint", "forked"),
    [
        ("python3 train.py", True),
        ("python train.py", True),
        (["python3", "train.py", "a; b"], True),
        ([sys.executable, "train.py"], True),
        ("python3 -O train.py", False),
        ("python3 train.py | cat", False),
        ("A=1 python3 train.py", False),
        ("echo start && python3 train.py", False),
        ("exec python3 train.py", False),
        ("sh run.sh", False),
        ("./run.sh", False),
    ],
)
def test_forked_entrypoints(
    legs: LegRunner, service: FakeService, entrypoint: str | list[str], forked: bool
) -> None:
    files: dict[str, str | bytes] = {
        "train.py": "import sys\nprint('determined_tasks.leg' in sys.modules)",
        "run.sh": "#!/bin/sh\nexec python3 train.py\n",
    }
    ended = legs.run(files, entrypoint=entrypoint)
    assert ended["exit_code"] == 0
    assert service.text("stdout").splitlines()[-1] == str(forked)


def test_startup_hook_changes_the_environment(legs: LegRunner, service: FakeService) -> None:
    files: dict[str, str | bytes] = {
        "train.py": "import os\nprint(os.environ['FROM_HOOK'], open('made').read(), end='')",
        "startup-hook.sh": "export FROM_HOOK='a b'\necho -n made > made\necho from the hook\n",
    }
    ended = legs.run(files)
    assert ended["exit_code"] == 0
    assert service.text("stdout") == "from the hook\na b made"


def test_exit_code_of_the_entrypoint_behind_a_hook(legs: LegRunner) -> None:
    files: dict[str, str | bytes] = {"train.py": "", "startup-hook.sh": "true"}
    assert legs.run(files, entrypoint="exit 5")["exit_code"] == 5
    assert legs.run(files, entrypoint="false || exit 6", allocation_id="7.abc.2")["exit_code"] == 6


def test_shell_text(legs: LegRunner, service: FakeService) -> None:
    entrypoint = "for i in 1 2; do echo $i $DET_TRIAL_ID; done; exit 3"
    assert legs.run({"x": ""}, entrypoint=entrypoint)["exit_code"] == 3
    assert service.text("stdout") == "1 21\n2 21\n"


def test_model_definition_is_fetched_once_and_every_leg_has_its_own_copy(
    legs: LegRunner, service: FakeService
) -> None:
    script = "print(open('notes').read())\nopen('notes', 'a').write('changed')"
    for number in (1, 2, 3):
        legs.run({"train.py": script, "notes": "as sent"}, allocation_id=f"7.abc.{number}")
    assert service.text("stdout") == "as sent\n" * 3
    assert len([path for path in service.paths() if path.endswith("/d1")]) == 1


def test_learning_lists_installed_modules_only(legs: LegRunner, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"train.py": "import helper, wave, yaml", "helper.py": ""}
    legs.run(files, learn_into=tmp_path / "learnt.json")
    learnt = imported_modules.read(tmp_path / "learnt.json")
    assert learnt is not None
    assert {"wave", "yaml", "yaml.loader"} <= set(learnt)
    assert not {"helper", "train", "__main__", "os", "determined_tasks.leg"} & set(learnt)


def test_of_several_processes_it_is_the_first_that_teaches(
    legs: LegRunner, service: FakeService, tmp_path: Path
) -> None:
    script = "import os\nif os.environ['RANK'] == '0': import wave\nelse: import yaml"
    learnt = tmp_path / "learnt.json"
    launch = "python3 -m determined.launch.torch_distributed --nproc_per_node=2 -- python3 train.py"
    legs.run({"train.py": script}, learn_into=learnt, entrypoint=launch)
    modules = imported_modules.read(learnt)
    assert modules is not None, service.text("stderr")
    assert "wave" in modules and "yaml.loader" not in modules
