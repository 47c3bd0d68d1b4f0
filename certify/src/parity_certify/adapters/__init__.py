"""Samplers of others: functions that turn prompts and a seed into tokens. The engine is imported when it is used."""
