"""The build engine: a plan becomes commands, a ninja file, a checked binary, a cache entry."""
