"""Shardlab's library."""
