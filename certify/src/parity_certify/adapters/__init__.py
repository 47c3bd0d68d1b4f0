"""Samplers of others, each a small module: functions that turn prompts and a seed into tokens.

The engine is the user's: what a module needs of it is imported when it is used.
"""
