"""Evaluations of served models."""
