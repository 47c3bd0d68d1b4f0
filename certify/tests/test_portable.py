"""Nothing in the package is of one operating system alone; what needs an extra says which."""

import ast
import sys
from pathlib import Path

import pytest

import parity_certify
from parity_certify import __main__ as command

SOURCE = Path(parity_certify.__file__).parent
MODULES = {"crypt", "fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
ATTRIBUTES = {
    "os": {"fork", "forkpty", "getuid", "geteuid", "getgid", "getpgid", "killpg", "mkfifo", "nice", "setsid", "uname",
           "sched_getaffinity", "sched_setaffinity", "wait", "waitpid", "O_DIRECTORY", "chown", "statvfs"},
    "signal": {"SIGKILL", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "alarm", "setitimer"},
    "select": {"poll", "epoll", "kqueue"},
    "time": {"tzset"},
}  # fmt: skip
KEYWORDS = {"preexec_fn", "start_new_session", "pass_fds"}  # of Popen
FOLDERS = ("/proc", "/dev/", "/tmp", "/sys/")
TEXT = {"open", "read_text", "write_text"}  # without an encoding: another one on each system


def is_of_one_system(node):
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] in MODULES for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module in MODULES or any(a.name in ATTRIBUTES.get(node.module, ()) for a in node.names)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr in ATTRIBUTES.get(node.value.id, ())
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.startswith(FOLDERS) or node.value in ("fork", "forkserver")
    if isinstance(node, ast.Call):
        keywords = {k.arg for k in node.keywords}
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        owner = getattr(getattr(node.func, "value", None), "id", "")
        binary = any(isinstance(a, ast.Constant) and a.value in ("rb", "wb") for a in node.args)
        text = name in TEXT and owner != "os" and not binary and "encoding" not in keywords
        return text or bool(KEYWORDS & keywords)
    return False


def lines_of_one_system(source):
    """Lines that run on some systems only, or read text in the encoding of the machine."""
    return sorted({node.lineno for node in ast.walk(ast.parse(source)) if is_of_one_system(node)})


def test_the_package_uses_nothing_of_one_system():
    found = {f.name: lines_of_one_system(f.read_text(encoding="utf-8")) for f in SOURCE.rglob("*.py")}
    assert len(found) > 20 and not any(found.values()), found


@pytest.mark.parametrize(
    "line",
    [
        "import resource", "from fcntl import flock", "from os import fork", "os.fork()", "os.kill(1, signal.SIGKILL)",
        "open('/proc/self/status', encoding='ascii')", "Popen(x, start_new_session=True)", "path.read_text()",
        "multiprocessing.get_context('fork')", "open(path)",
    ],
)  # fmt: skip
def test_what_is_of_one_system_is_seen(line):
    assert lines_of_one_system(line) == [1]
    assert not lines_of_one_system("open(path, 'rb'); os.open(path, 0); path.open(encoding='utf-8'); f('spawn')")


@pytest.mark.parametrize("way", [["transformers"], ["texts", "--texts", "t.jsonl"], ["models", "--out", "m"]])
def test_a_missing_extra_is_one_line(monkeypatch, capsys, way):
    needs_torch = {"adapters.transformers", "adapters.mending", "models", "teacher_forced", "texts"}
    for name in needs_torch:
        monkeypatch.delitem(sys.modules, f"parity_certify.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(sys, "argv", ["parity-certify", *way])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert capsys.readouterr().err == 'error: needs torch: pip install "parity-certify[transformers]"\n'
