"""The cases, one file each: ``run(bench)`` makes trouble for one contender and returns what was observed."""
