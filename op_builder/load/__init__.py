"""The way from a plan to an opened op: loaded, prebuilt, cached, or compiled now."""
