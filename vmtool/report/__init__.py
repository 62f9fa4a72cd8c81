"""Results as text, JSON and HTML; nothing here measures."""
