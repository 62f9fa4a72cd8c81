"""Results as text, Markdown, HTML and CSV; nothing here measures."""
