"""Every snippet of the pages runs: half of them; the others stand in a file of their own, and run beside these."""

from __future__ import annotations

import doc_pages
import pytest


@pytest.mark.parametrize("page", doc_pages.runnable()[::2], ids=lambda page: page.name)
def test_every_snippet_of_a_page_runs(page, run_python, tmp_path):
    doc_pages.assert_runs(page, run_python(tmp_path, doc_pages.__file__, page))
