"""What mkdocs is told beside mkdocs.yml: figures stand in evidence/, and pages link to them as they do on a code host.

A page in docs/ links to ../evidence/small/figures/x.svg. In the site that file is evidence/small/figures/x.svg. Other
links out of docs/ lead nowhere in the site, and become the words that they are. A spread in a table, such as
`1.18 [1.05, 1.34]`, is not torn apart.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

FIGURES = "evidence/**/*.svg"
SPREAD = re.compile(r"(?<= \[)([\d.,]+), ([\d.,]+)(?=\] *\|)")
OUTSIDE = re.compile(r"(!?)\[([^\]\n]*)\]\(\.\./([^)\s]*)\)")


def on_files(files: Files, *, config: Any) -> Files:
    """The figures, as files of the site."""
    root = Path(config.config_file_path).parent
    for figure in sorted(root.glob(FIGURES)):
        name = figure.relative_to(root).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links out of docs/, and spreads, as the site has them. A missing figure stays wrong: the build says so."""

    def link(found: re.Match[str]) -> str:
        shown, words, path = found.groups()
        if shown or files.get_file_from_path(path) is not None:
            return f"{shown}[{words}]({path})"
        return words

    return SPREAD.sub(r"\1,&nbsp;\2", OUTSIDE.sub(link, markdown))
