"""Dotted names of modules while they run: ``GPT.transformer.h.3.attn``, rooted at the outermost one
called."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..patches import Patches
from .spans import SpanRecorder, now_ns


class RootObserver(Protocol):
    """Follows the calls of modules that no other module calls."""

    def root_called(self, module: torch.nn.Module, name: str) -> None:
        """Handle a call of such a module, given its name."""

    def root_left(self, module: torch.nn.Module) -> None:
        """Handle the end of its call, even if an exception ended it."""


class _Root:
    """A module that was called from outside any other, and the paths of the modules in it."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self.name = name
        self.paths: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._module = weakref.ref(module)
        self.learn()

    def learn(self) -> None:
        """Find the paths again: modules are added and replaced after the first call."""
        module = self._module()
        if module is not None:
            for path, submodule in module.named_modules():
                self.paths[submodule] = f"{self.name}.{path}" if path else self.name


class _Stack(threading.local):
    def __init__(self) -> None:
        self.calls: list[tuple[torch.nn.Module, str, int, _Root]] = []


class ModuleCalls:
    """Global forward hooks that name every module call and report the outermost ones."""

    def __init__(self, spans: SpanRecorder, observer: RootObserver) -> None:
        self._spans = spans
        self._observer = observer
        self._stack = _Stack()
        self._roots: WeakKeyDictionary[torch.nn.Module, _Root] = WeakKeyDictionary()
        self._names: Counter[str] = Counter()

    def install(self, patches: Patches) -> None:
        """Register the hooks."""
        # They do nothing while torch.compile traces, so its warning about them would mislead.
        patches.ignore_warning(".*when there are global hooks on modules")
        patches.on_undo(register_module_forward_pre_hook(self.enter).remove)
        patches.on_undo(register_module_forward_hook(self.leave, always_call=True).remove)

    def enter(self, module: torch.nn.Module, _args: object) -> None:
        """Handle a call of a module."""
        if torch.compiler.is_compiling():
            return
        calls = self._stack.calls
        if calls:
            root, parent = calls[0][3], calls[-1][1]
            name = root.paths.get(module)
            if name is None:
                root.learn()
                name = root.paths.setdefault(module, f"{parent}.{type(module).__name__}")
        else:
            root = self._root_of(module)
            name = root.paths[module]
            if name == root.name:
                self._observer.root_called(module, name)
        self._spans.flush()
        calls.append((module, name, now_ns(), root))

    def leave(self, module: torch.nn.Module, _args: object, _result: object) -> None:
        """Handle the end of the call."""
        if torch.compiler.is_compiling():
            return
        calls = self._stack.calls
        self._spans.flush()
        # A call that was left by an exception may still be on top.
        while calls:
            called, name, begin, root = calls.pop()
            if called is module:
                self._spans.add("xmem_module", name, begin, now_ns())
                if not calls and name == root.name:
                    self._observer.root_left(module)
                return

    def _root_of(self, module: torch.nn.Module) -> _Root:
        """Return the root that an outermost call belongs to: a known one (recomputation calls its parts), or
        a new one."""
        root = self._roots.get(module)
        if root is None:
            root = next((known for known in self._roots.values() if module in known.paths), None)
            if root is None:
                class_name = type(module).__name__
                self._names[class_name] += 1
                count = self._names[class_name]
                root = _Root(class_name if count == 1 else f"{class_name}#{count}", module)
            self._roots[module] = root
        return root
