"""Backends that run programs: servers of ours, and the services of others."""
