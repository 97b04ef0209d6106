"""The documentation's site: `make docs` builds it into build/docs, with warnings as errors."""

from __future__ import annotations

import etymon

project = "Etymon"
author = "The Etymon authors"
copyright = "the Etymon authors, Apache-2.0"
version = release = etymon.__version__

extensions = ["myst_parser", "sphinx_design", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence", "deflist"]
# Links such as recipes.md#recipes, in the site as on a code host.
myst_heading_anchors = 4
# Blocks that tests run are marked by a comment before them; it is nothing to show.
myst_links_external_new_tab = False
exclude_patterns = ["build", "_build"]

html_theme = "furo"
# What a program printed is no Python, though Sphinx would colour it as such.
highlight_language = "none"
# The theme's own dark style underlines the names of modules.
pygments_dark_style = "github-dark"
html_title = "Etymon"
html_static_path = ["_static"]
html_css_files = ["etymon.css"]
html_copy_source = False
# Cuts Chinese into words by jieba, and takes English words as they are: one search for both languages.
html_search_language = "zh"
# Prompts and results are not copied with a command.
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
# Fonts of the reader's own machine; behind the theme's own those with the forms that Chinese characters have in China.
CHINESE = '"PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", "Noto Sans SC"'
# Before them one of Latin letters that there is anywhere: in a Chinese font, an apostrophe is as wide as a character.
LATIN = '"Helvetica Neue", Arial, "Liberation Sans", "DejaVu Sans"'
# For the same reason quotes stay as they are written.
smartquotes = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#2563eb",
        "color-brand-content": "#2563eb",
        "font-stack": f'-apple-system, BlinkMacSystemFont, "Segoe UI", "Noto Sans", {LATIN}, {CHINESE}, sans-serif',
        "font-stack--monospace": f'"SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", {CHINESE}, monospace',
    },
    "dark_css_variables": {"color-brand-primary": "#6ea8fe", "color-brand-content": "#6ea8fe"},
}
