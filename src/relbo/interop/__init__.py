"""Connections to other libraries."""
