"""Hook of MkDocs (see mkdocs.yml): pages of the site that are not Markdown files in docs/.

The tutorial becomes a page. So does every file of the repository that a page links to (`../src/arithscope/…py`), below
`repository/`, and links are rewritten to lead there: they work on the built site as they do in a checkout.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FENCES = {".py": "python", ".toml": "toml", ".js": "javascript", ".yml": "yaml", ".cff": "yaml"}
TUTORIAL = "docs/tutorial.ipynb"


def on_files(files: Files, config: Any) -> Files:
    """Add the tutorial, and a page for every file of the repository that is linked to, directly or from such a page."""
    files.append(_generated(config, "tutorial.md", _notebook(ROOT / TUTORIAL)))
    todo = [file for file in files if file.src_uri.endswith(".md")]
    known = {file.src_uri for file in files}
    for file in todo:  # grows
        for _, target, _ in LINK.findall(file.content_string):
            path = _in_repository(file, target)
            if path is None or (page := _page_of(path)) in known:
                continue
            known.add(page)
            files.append(added := _generated(config, page, _contents(ROOT / path)))
            todo.append(added)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links to files outside docs/."""
    here = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        path = _in_repository(page.file, found[2])
        if path is None:
            return found[0]
        return f"{found[1]}{posixpath.relpath(_page_of(path), here or '.')}{found[3]}"

    return LINK.sub(link, markdown)


def _in_repository(file: File, target: str) -> str | None:
    """Path of a linked file in the repository, if the hook makes a page for it; None for a link that MkDocs resolves."""
    if ":" in target:
        return None
    generated = file.src_uri.startswith("repository/")
    folder = posixpath.dirname(file.src_uri.removeprefix("repository/") if generated else f"docs/{file.src_uri}")
    path = posixpath.normpath(posixpath.join(folder, target))
    if path.startswith("docs/") and not generated and path != TUTORIAL:
        return None
    return path if (ROOT / path).exists() else None


def _page_of(path: str) -> str:
    """Path, in the site's sources, of the page for a file of the repository."""
    if path == TUTORIAL:
        return "tutorial.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def _contents(path: Path) -> str:
    if path.is_dir():
        names = sorted(
            f"{p.name}/" if p.is_dir() else p.name for p in path.iterdir() if not p.name.startswith((".", "__"))
        )
        return f"# {path.name}/\n\n" + "\n".join(f"- `{name}`" for name in names)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return f"# {path.relative_to(ROOT).as_posix()}\n\n``` {FENCES.get(path.suffix, 'text')}\n{text}```\n"


def _notebook(path: Path) -> str:
    """A notebook without outputs as Markdown."""
    cells = nbformat.read(path, as_version=4).cells
    note = f'*This page is a notebook: <a href="{path.name}" download>download it</a>, or open it from docs/ in a checkout.*'
    texts = [c.source if c.cell_type == "markdown" else f"```python\n{c.source}\n```" for c in cells]
    return "\n\n".join([texts[0], note, *texts[1:]])


def _generated(config: Any, page: str, content: str) -> File:
    return File.generated(config, page, content=content)
