"""Commands of ``accel-ops`` that have no package of their own."""
