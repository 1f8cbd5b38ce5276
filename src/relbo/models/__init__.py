"""Models and proposals."""
