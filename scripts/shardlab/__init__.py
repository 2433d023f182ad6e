"""The parts that Shardlab's programs share; see the README for the layout."""
