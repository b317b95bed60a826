"""The package itself: its imports and its names."""

import ast
import inspect
import pathlib
import typing

import iomill

ROOT = pathlib.Path(iomill.__path__[0])


def imports_of(path):
    """The modules of the package that a module imports, also within functions, and for types only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            # `from . import x` names a module, or something of the package itself.
            names = [node.module] if node.module else [one.name for one in node.names]
            found.update(name.split(".")[0] if is_module(name) else "__init__" for name in names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "iomill":
            rest = node.module.split(".")[1:]
            found.update(rest[:1] or [one.name if is_module(one.name) else "__init__" for one in node.names])
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] == "iomill":
                    found.add((one.name.split(".") + ["__init__"])[1])
    return found


def is_module(name):
    return name == "_iomill" or (ROOT / f"{name.split('.')[0]}.py").exists()


def circle_in(graph):
    """A cycle of imports: modules in order, the first one twice. None if there is none."""
    done, trail = set(), []

    def visit(name):
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return None
        trail.append(name)
        for other in sorted(graph.get(name, ())):
            circle = visit(other)
            if circle:
                return circle
        done.add(trail.pop())
        return None

    for name in sorted(graph):
        circle = visit(name)
        if circle:
            return circle
    return None


def test_no_modules_import_each_other():
    graph = {path.stem: imports_of(path) for path in ROOT.glob("*.py")}
    assert len(graph) > 20 and "_files" in graph["_rows"] and "_iomill" in graph["_cache"]
    assert circle_in(graph) is None
    assert circle_in({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d", "b"]


def signatures_of(named):
    """The methods and functions of a public name, with their types."""
    if not inspect.isclass(named):
        return {named.__name__: named}
    return {
        name: getattr(one, "__func__", getattr(one, "fget", one))
        for name, one in vars(named).items()
        if (not name.startswith("_") or name == "__init__")
        and (callable(one) or isinstance(one, (classmethod, property)))
    }


# Names with values of any type: items of rows, objects with a buffer, options of other libraries.
ANY = {("RowArray", "take"), ("RowArray", "write"), ("RowArray", "create"), ("cached", "cached")}


def test_signatures_have_types():
    for name in iomill.__all__:
        for called, function in signatures_of(getattr(iomill, name)).items():
            if not inspect.isfunction(function) or function.__module__.split(".")[0] != "iomill":
                continue
            signature = inspect.signature(function)
            types = {
                one.name: one.annotation for one in signature.parameters.values() if one.name not in ("self", "cls")
            }
            types["return"] = signature.return_annotation
            for what, kind in types.items():
                assert kind is not inspect.Parameter.empty, (name, called, what)
                assert kind not in ("Any", typing.Any) or (name, called) in ANY, (name, called, what)
