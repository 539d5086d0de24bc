"""Actions that wait for a module: all of them run, once, when its import ends."""

import sys
from pathlib import Path

import pytest

import xmem.capture

sys.path.insert(0, str(Path(xmem.capture.__file__).parent / "child"))

from xmem_child import following_imports
from xmem_child.following_imports import after_import


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Two modules that can be imported, one of which imports the other."""
    (tmp_path / "first_of_two.py").write_text("VALUE = 1\n")
    (tmp_path / "second_of_two.py").write_text("import first_of_two\nVALUE = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    finder = following_imports._Finder()  # others of this process may wait for modules
    monkeypatch.setattr(following_imports, "_finder", finder)
    yield finder
    for name in ("first_of_two", "second_of_two"):
        sys.modules.pop(name, None)


def test_several_actions_wait_for_one_module_and_run_in_order(modules):
    seen = []
    after_import("first_of_two", lambda module: seen.append(("a", module.VALUE)))
    after_import("first_of_two", lambda module: seen.append(("b", module.VALUE)))
    after_import("second_of_two", lambda module: seen.append(("c", module.VALUE)))
    assert modules in sys.meta_path
    import second_of_two  # noqa: F401

    assert seen == [("a", 1), ("b", 1), ("c", 2)]
    assert modules not in sys.meta_path


def test_a_module_that_is_there_is_not_waited_for(modules):
    import first_of_two

    seen = []
    after_import("first_of_two", seen.append)
    assert seen == [first_of_two]
    assert "first_of_two" not in modules.wanted


@pytest.mark.usefixtures("modules")
def test_an_action_may_wait_for_another_module():
    seen = []
    after_import("first_of_two", lambda _: after_import("second_of_two", seen.append))
    import first_of_two  # noqa: F401
    import second_of_two

    assert seen == [second_of_two]
