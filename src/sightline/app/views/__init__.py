"""One file a page; `page()` draws it."""
