"""A job file as the API takes it: its text, and that of the model file that it names."""
from __future__ import annotations

import os
from typing import Any, Sequence

import yaml

from . import messages as api


def model_file(root: Any, overrides: Sequence[str]) -> tuple[str | None, bool]:
    """The model file's name, if there is one, and whether an override gives it; the daemon refuses what is wrong."""
    model, given = root.get("model") if isinstance(root, dict) else None, False
    for override in overrides:
        key, _, value = override.partition("=")
        try:
            if key == "model":
                model, given = yaml.safe_load(value), True
            elif key == "model.file":
                model, given = {"file": str(yaml.safe_load(value))}, True
        except yaml.YAMLError:
            pass
    name = model.get("file") if isinstance(model, dict) else None
    return (name if isinstance(name, str) else None), given


def read_job_file(path: str | os.PathLike[str], overrides: Sequence[str]) -> api.JobFile:
    path = os.fspath(path)
    with open(path, encoding="utf-8") as file:
        sent = api.JobFile(text=file.read(), name=path, overrides=overrides, home=os.path.expanduser("~"))
    try:
        root = yaml.safe_load(sent.text)
        job = root.get("trainJobTemplate") if isinstance(root, dict) else None
        if isinstance(job, str):  # of a sweep
            path = os.path.join(os.path.dirname(path), job)
            with open(path, encoding="utf-8") as file:
                sent.files[job] = file.read()
            job = yaml.safe_load(sent.files[job])
        name, given = model_file(job or root, overrides)
    except yaml.YAMLError:
        return sent
    if name is not None:
        local = os.path.expanduser(name)
        # One of an override may be relative to the working directory.
        if not (given and os.path.exists(local)):
            local = os.path.join(os.path.dirname(path), local)
        with open(local, encoding="utf-8") as file:
            sent.files[name] = file.read()
    return sent
