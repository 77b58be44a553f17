"""Programs that the benchmarks run by path. No file here has the name of a package that one of them imports."""
