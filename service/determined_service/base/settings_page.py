"""Every setting of the service as one page: ``python -m determined_service.base.settings_page > PAGE``.

The page is docs/reference/settings.md; a test fails when it says something else than the class.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys

from determined_service.base import settings

HEAD = """# The service's settings

After this page you can write the file that `det deploy service --config FILE` and
`det deploy prefect --config FILE` read ([several machines](../operate/production.md)): YAML, or JSON. It is
written by `make docs` from the class of the settings. A local cluster writes the file itself. Pools, quotas
and defaults of tasks are in the [cluster configuration](../operate/cluster-config.md).

Unknown names are refused. The file holds passwords: mode 0640 at most, readable by the service's account. It
is read when the service starts.

| setting | default | |
|---|---|---|
"""


def page() -> str:
    """The whole page, in Markdown."""
    (body,) = [
        node.body
        for node in ast.parse(inspect.getsource(settings)).body
        if isinstance(node, ast.ClassDef) and node.name == settings.Settings.__name__
    ]
    text = HEAD
    for name, field in settings.Settings.model_fields.items():
        if field.is_required():
            default = "must be set"
        else:
            value = field.get_default(call_default_factory=True, validated_data={})
            default = "none" if value in (None, [], {}) else f"`{value}`"
        text += f"| `{name}` | {default} | {_comment(body, name)} |\n"
    return text


def _comment(body: list[ast.stmt], name: str) -> str:
    for field, comment in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == name:
            words = comment.value if isinstance(comment, ast.Expr) else None
            if isinstance(words, ast.Constant):
                return re.sub(r"\s+", " ", str(words.value)).strip().replace("``", "`")
    raise ValueError(f"{name} has no comment")


if __name__ == "__main__":
    sys.stdout.write(page())
