"""Hides from xMem's own code what Python has on POSIX alone; loaded where ``PYTHONPATH`` names this folder.

Other packages keep it: what they use is chosen by ``sys.platform``, which stays that of this machine. What is
read from /proc stays too, such as the memory of the host.
"""

import builtins
import faulthandler
import os
import select
import signal
import sys
from types import ModuleType

GONE = {
    os: (
        "fork getuid geteuid getpgid getsid killpg pread register_at_fork sched_getaffinity setsid "
        "uname O_NOFOLLOW"
    ),
    signal: "SIGHUP SIGKILL SIGQUIT SIGRTMIN SIGRTMAX SIGBUS pthread_sigmask",
    select: "poll epoll",
    faulthandler: "register",
}
MODULES = {"fcntl", "grp", "pwd", "resource", "termios"}


def _is_ours(name):
    return name.startswith("xmem")


def _hide(module, names):
    hidden = {name: module.__dict__.pop(name) for name in names if hasattr(module, name)}

    class Hiding(ModuleType):
        def __getattr__(self, name):
            if name not in hidden or _is_ours(sys._getframe(1).f_globals.get("__name__", "")):
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            return hidden[name]

    module.__class__ = Hiding


_import = builtins.__import__


def _import_or_refuse(name, globals=None, locals=None, fromlist=(), level=0):
    if name in MODULES and _is_ours((globals or {}).get("__name__", "")):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return _import(name, globals, locals, fromlist, level)


for _module, _names in GONE.items():
    _hide(_module, _names.split())
builtins.__import__ = _import_or_refuse
