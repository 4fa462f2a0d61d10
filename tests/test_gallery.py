"""The builder of the gallery, on a page of its own; `make docs` runs the pages themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.documents import module_of_the_site

module_of_the_site("blocks")
run_gallery = module_of_the_site("run_gallery")

PAGE = """# A page

```python
# tool.py
print("a file that is saved, not run")
```

```
safemargin margin zoo:pong-a3c --proxy -2 --tolerance 0.5 --json
```

```python
import tool
from PIL import Image

kept = 41
```

```python
print(kept + 1)
Image.new("RGB", (2, 2)).save("square.png")
```

![A square](square.png)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docs" / "gallery").mkdir(parents=True)
    monkeypatch.setattr(run_gallery, "ROOT", tmp_path)
    monkeypatch.setattr(run_gallery, "PAGES", tmp_path / "docs" / "gallery")
    return tmp_path


def test_a_page_is_run_and_shows_what_it_printed_and_drew(root: Path) -> None:
    (root / "docs/gallery/page.md").write_text(PAGE)
    (text,) = run_gallery.run_all(root / "pictures", root / "live").values()
    printed = [part.split("```")[0].strip() for part in text.split("```text\n")[1:]]
    assert printed[1:] == ["a file that is saved, not run", "42"]
    assert '"margin"' in printed[0]
    assert "![A square](../generated/gallery/page/square.png)" in text
    assert (root / "pictures" / "page" / "square.png").exists()
    assert "Run and drawn when this site was built, in" in text


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("```\nsafemargin margin none.json --proxy 1\n```\n", r"safemargin margin none\.json …: "),
        ("```python\nassert 1 > 2\n```\n", "AssertionError"),
        ("![Nothing](nothing.png)\n", r"page\.md: no block drew nothing\.png"),
    ],
)
def test_a_page_that_fails_is_named(root: Path, page: str, said: str) -> None:
    (root / "docs/gallery/page.md").write_text(page)
    with pytest.raises(run_gallery.PageFailed, match=said):
        run_gallery.run_all(root / "pictures", root / "live")
