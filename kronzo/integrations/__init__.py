"""Thin adapters to frameworks of others; nothing here is imported before it is asked for."""
