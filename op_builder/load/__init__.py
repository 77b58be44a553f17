"""From a plan to an opened op: already loaded, prebuilt, cached, or compiled now."""
