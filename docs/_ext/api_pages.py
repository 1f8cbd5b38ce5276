"""The API reference: a page for each topic, written from the public names of the package before the site is read.

A name is public if `__init__` of its package exports it. So a new name is on the site without anybody's doing.
"""

import importlib
import inspect
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "api"

TOPICS = {
    "training": (
        "Training, evaluation, posterior",
        "What a script calls: train, judge, draw.",
        ["relbo.train", "relbo.evaluate", "relbo.posterior"],
    ),
    "models": (
        "Models and proposals",
        "What you write, and what is there to start from.",
        ["relbo.models", "relbo.types"],
    ),
    "estimators": (
        "Estimator classes",
        "One class for each method; all share `init` and `estimate`.",
        ["relbo.estimators"],
    ),
    "thresholds": ("Thresholds", "How T, the threshold of the accept/reject step, is set.", ["relbo.thresholds"]),
    "acceptance": ("Acceptance functions", "How likely a proposal is kept.", ["relbo.acceptance"]),
    "bounds": ("Bounds", "Lower bounds of log p(x), as objects and in words.", ["relbo.bounds"]),
    "extending": ("For your own estimator", "What an extension passes around.", ["relbo.view", "relbo.streams"]),
}
"""Page -> title, one sentence, and the modules whose names of `relbo` it holds; the last takes what is left."""

MODULES = {
    "relbo.calibration": "Is my posterior right? Simulation-based calibration.",
    "relbo.exact": "Every quantity of a small model by enumeration.",
    "relbo.variance": "How noisy the gradients of an estimator are.",
    "relbo.rejection": "The sampler.",
    "relbo.data": "Datasets by name, and your own.",
    "relbo.numpyro": "Estimators and posteriors for NumPyro models and guides.",
    "relbo.models.toy": "Small targets for examples and tests.",
}
"""Modules with a page of their own."""


def public_names(module_name: str) -> dict[str, object]:
    """What a package exports, or what a plain module defines."""
    module = importlib.import_module(module_name)
    is_package = hasattr(module, "__path__")
    found = {}
    for name, value in vars(module).items():
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if not (inspect.isclass(value) or inspect.isfunction(value) or _is_compiled(value)):
            continue
        home = getattr(value, "__module__", "") or ""
        if home.startswith("relbo") if is_package else home == module_name:
            found[name] = value
    return found


def _is_compiled(value: object) -> bool:
    return callable(value) and hasattr(value, "__wrapped__")


def topic_of(value: object) -> str:
    """The page that a name of `relbo` is on."""
    home = value.__module__
    for page, (_, _, homes) in TOPICS.items():
        if any(home == prefix or home.startswith(prefix + ".") for prefix in homes):
            return page
    return "extending"


def entry(module: str, name: str, value: object) -> str:
    """The directive that shows one name."""
    if inspect.isclass(value):
        return f"```{{eval-rst}}\n.. autoclass:: {module}.{name}\n   :members:\n   :show-inheritance:\n```\n"
    return f"```{{eval-rst}}\n.. autofunction:: {module}.{name}\n```\n"


def page(title: str, sentence: str, entries: list[tuple[str, str, object]]) -> str:
    """One page: a heading for each name, so that it is in the list at the side."""
    parts = [f"# {title}\n\n{sentence}\n"]
    parts += [f"## {name}\n\n{entry(module, name, value)}" for module, name, value in entries]
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """File name -> text."""
    by_topic: dict[str, list[tuple[str, str, object]]] = {topic: [] for topic in TOPICS}
    for name, value in public_names("relbo").items():
        by_topic[topic_of(value)].append(("relbo", name, value))
    found = {topic: page(TOPICS[topic][0], TOPICS[topic][1], entries) for topic, entries in by_topic.items()}
    listed = {id(value) for entries in by_topic.values() for _, _, value in entries}
    for module, sentence in MODULES.items():
        entries = [(module, n, v) for n, v in public_names(module).items() if id(v) not in listed]
        found[module.replace("relbo.", "")] = page(f"{module}", sentence, entries)
    found["estimators"] += "\n" + extras("relbo.estimators", listed)
    found["thresholds"] += "\n" + extras("relbo.thresholds", listed)
    found["bounds"] += "\n" + extras("relbo.bounds", listed)
    found["acceptance"] += "\n" + extras("relbo.acceptance", listed)
    names = [*TOPICS, *(module.replace("relbo.", "") for module in MODULES), "cli"]
    found["cli"] = command_line()
    found["index"] = f"""# API reference

Every public name, from its docstring, with an example that the tests run. `import relbo` gives all of it but
`relbo.numpyro`, which needs the extra of that name. The examples may use these names:

```python
{standing_names()}
```

```{{toctree}}
:maxdepth: 1

{chr(10).join(names)}
```
"""
    return found


def standing_names() -> str:
    """The text of the file that defines what every example may use, without its ends."""
    text = (Path(__file__).parent / "standing_names.py").read_text(encoding="utf-8")
    return text.partition("import")[1] + text.partition("import")[2].partition("\n__all__")[0].rstrip()


def extras(module: str, listed: set[int]) -> str:
    """What a module offers beyond the names of `relbo`."""
    entries = [(module, n, v) for n, v in public_names(module).items() if id(v) not in listed]
    return "\n".join(f"## {module}.{n}\n\n{entry(m, n, v)}" for m, n, v in entries)


def command_line() -> str:
    """The help of every command, as the program prints it."""
    import click
    import typer.main

    from relbo.lab.cli.app import build_app

    group = typer.main.get_command(build_app())
    parts = ["# Command line\n\nEvery command with its options, as `relbo COMMAND --help` shows them.\n"]

    def show(command, words: list[str]) -> None:
        children = getattr(command, "commands", None)
        if children:
            for name, child in children.items():
                show(child, [*words, name])
            return
        context = click.Context(command, info_name=" ".join(words))
        rows = []
        for parameter in command.params:
            record = parameter.get_help_record(context)
            if record is None and parameter.param_type_name == "argument":
                record = (parameter.make_metavar(context), getattr(parameter, "help", "") or "")
            if record is not None:
                option, text = (cell.replace("|", "\\|").replace("\n", " ") for cell in record)
                rows.append(f"| `{option}` | {text} |")
        text = (command.help or "").strip()
        parts.append(f"## {' '.join(words)}\n\n{text}\n\n| option | |\n|---|---|\n" + "\n".join(rows) + "\n")

    show(group, ["relbo"])
    return "\n".join(parts)


def write(app) -> None:
    """Writes what has changed."""
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for old in FOLDER.glob("*.md"):
        if old.stem not in texts:
            old.unlink()
    for name, text in texts.items():
        file = FOLDER / f"{name}.md"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def setup(app):
    """Before the sources are looked for."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
