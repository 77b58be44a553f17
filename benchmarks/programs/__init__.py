"""What the benchmarks run by path, in processes of their own: no file here has the name of a package they import."""
