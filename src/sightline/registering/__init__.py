"""Models that are kept: registered, compared, promoted, converted from other people's weights."""
